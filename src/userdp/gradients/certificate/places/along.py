"""Functions along some dimensions, each of the others for itself: softmax, sums, linear layers."""

from __future__ import annotations

from torch import Tensor

from userdp.gradients.certificate.places.numbers import elementwise
from userdp.gradients.certificate.places.place import CONSTANT, Call, Place, Rule, places


def _along(position: int, default: int | None = None) -> Rule:
    """f along one dimension, each of the others for itself: softmax, cumsum, sort, split, ..."""

    def rule(call: Call) -> Place | None:
        place, dim = call.first, call.dim(position, "dim", default)
        if place is None or not call.rest_constant():
            return None
        if place.constant:
            return CONSTANT
        return None if dim is None or dim == place.dim else place

    return rule


places("softmax log_softmax cumsum cumprod narrow index_select")(_along(1))
places("sort argsort glu")(_along(1, -1))
places("topk")(_along(2, -1))
places("normalize")(_along(2, 1))
places("split chunk tensor_split")(_along(2, 0))


@places("max min")
def _largest(call: Call) -> Place | None:
    """The larger of two tensors, or the largest of one."""
    return elementwise(call) if isinstance(call.argument(1, "other"), Tensor) else _reduced(call)


@places("sum mean prod amax amin all any logsumexp var std argmax argmin")
def _reduced(call: Call) -> Place | None:
    """A sum, mean, ... over dimensions that do not count rows."""
    if not call.rest_constant():
        return None
    place = call.first
    if place is None or place.dim is None or place.counts:
        return None if place is None else CONSTANT
    over = call.argument(1, "dim")
    if isinstance(over, int) and not isinstance(over, bool):
        over = [over]
    if not isinstance(over, tuple | list) or not over:
        return None
    dims = {d % len(call.shape) for d in over}
    if place.dim in dims:
        return None
    one = call.result if isinstance(call.result, Tensor) else call.result[0]
    if one.dim() == len(call.shape):
        return place
    return place._replace(dim=place.dim - sum(d < place.dim for d in dims))


def _keeping_last(call: Call, last: int) -> Place | None:
    """f of the ``last`` dimensions, each of the others for itself."""
    place = call.first
    if place is None or not call.rest_constant():
        return None
    if place.dim is None or place.counts:
        return CONSTANT
    return place if place.dim < len(call.shape) - last else None


@places("linear")
def _linear(call: Call) -> Place | None:
    return _keeping_last(call, 1)


@places("layer_norm rms_norm")
def _normalized(call: Call) -> Place | None:
    shape = call.argument(1, "normalized_shape")
    return _keeping_last(call, len(shape)) if isinstance(shape, tuple | list) else None


@places("pad")
def _pad(call: Call) -> Place | None:
    amounts = call.argument(1, "pad")
    if not isinstance(amounts, tuple | list):
        return None
    padded = [number for number, amount in enumerate(amounts) if amount != 0]
    return _keeping_last(call, max(padded, default=-1) // 2 + 1)
