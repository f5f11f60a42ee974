"""Functions of numbers at one place, such as a sum of two tensors or dropout; and constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from userdp.gradients.certificate.places.place import (
    CONSTANT,
    FIRST,
    Call,
    Place,
    calls_of,
    named,
    places,
    tensors_in,
)
from userdp.gradients.losses import token_losses

_COUNTING = (torch.int64, torch.int32, torch.float64)
"""Types that hold every index of a dimension exactly."""

_OPERATORS = (
    "add sub mul truediv floordiv mod pow and or xor radd rsub rmul rtruediv rpow rand ror rxor "
    "iadd isub imul itruediv iand ior eq ne lt le gt ge neg invert abs pos"
)
_ELEMENTWISE = (
    "abs neg negative positive exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal "
    "sin cos tan tanh sigmoid erf erfc erfinv atan sign round floor ceil trunc add sub subtract "
    "mul multiply div divide true_divide floor_divide remainder pow maximum minimum where "
    "masked_fill eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and "
    "bitwise_or bitwise_xor bitwise_not isfinite isnan isinf nan_to_num addcmul addcdiv lerp "
    "logaddexp clamp clamp_min clamp_max clip relu relu6 gelu silu mish softplus elu selu celu "
    "leaky_relu hardtanh hardswish hardsigmoid softsign logsigmoid tanhshrink threshold"
)


@places(
    _ELEMENTWISE,
    *(f"{name}_" for name in _ELEMENTWISE.split()),
    *(f"__{name}__" for name in _OPERATORS.split()),
)
def elementwise(call: Call) -> Place | None:
    """f(a, b, ...), broadcast: the same dimension of the result must count the same rows."""
    if not isinstance(call.result, Tensor):  # torch.where(condition) is a selection
        return None
    return call.joined(call.values, call.result.dim())


@places(
    "to type type_as float double half bfloat16 long int short bool cpu contiguous clone detach "
    "detach_"
)
def _same_numbers(call: Call) -> Place | None:
    """a, perhaps in another type; a count stays one only in types that hold every index."""
    place = call.first if call.result.shape == call.shape else None
    if place is not None and place.counts and call.result.dtype not in _COUNTING:
        return CONSTANT
    return place


@places("copy_")
def _copied(call: Call) -> Place | None:
    """Another tensor's numbers in place of a's."""
    return call.joined(call.values[1:2], call.result.dim())


@places("tril triu tril_ triu_")
def _like_first(call: Call) -> Place | None:
    """f(a), of the same shape; what else the call is given is nobody's."""
    place = call.first if call.result.shape == call.shape else None
    return CONSTANT if place is not None and place.counts else place


_DROPOUT = (
    "dropout dropout_ alpha_dropout alpha_dropout_ dropout1d dropout2d dropout3d feature_dropout "
    "feature_dropout_ feature_alpha_dropout feature_alpha_dropout_"
)

_RATE = {
    **dict.fromkeys(named(_DROPOUT), (1, "p", 0.5)),
    **dict.fromkeys(named("scaled_dot_product_attention"), (4, "dropout_p", 0.0)),
}
"""Where a function has its rate, of those with a rule that may throw coins."""

THROWS = frozenset(_RATE)


def throws(function: Any, call: Call) -> bool:
    """Whether a call of one of `THROWS` throws coins."""
    position, name, default = _RATE[function]
    if name == "p" and _asleep(call):
        return False
    return bool(call.argument(position, name, default) != 0)


def _asleep(call: Call) -> bool:
    """Whether a call of dropout is one of evaluation."""
    return call.argument(2, "training", call.kwargs.get("train")) is False


@places("dropout dropout_ alpha_dropout alpha_dropout_")
def _dropped(call: Call) -> Place | None:
    """a, some numbers of it replaced by 0, each by a coin of its own.

    A row's numbers then are a function of its own coins too. Coins thrown for a constant belong to
    somebody as well: to the row whose index they have, which is what (rows, ...) says. Where its
    shape says otherwise, as that of weights or of positions for all rows, `Rows.mark` drops the
    place: the coins are nobody's, or everybody's, and what becomes of them is not proved.
    """
    place, rate = _like_first(call), call.argument(1, "p", 0.5)
    if place is None or not isinstance(rate, int | float):  # a rate may be somebody's number
        return None
    return FIRST if place.constant and rate != 0 and not _asleep(call) else place


@places(
    "dropout1d dropout2d dropout3d feature_dropout feature_dropout_ feature_alpha_dropout "
    "feature_alpha_dropout_"
)
def _dropped_channels(call: Call) -> Place | None:
    """(rows, channels, ...), or (channels, ...), with one coin for all behind these dimensions.

    Rows in the first dimension share none; in any other they might.
    """
    place = _dropped(call)
    return place if place is not None and place.dim in (None, 0) else None


@places("mse_loss l1_loss smooth_l1_loss kl_div binary_cross_entropy_with_logits")
def _pair_losses(call: Call) -> Place | None:
    """Elementwise losses of two tensors, such as a squared error."""
    return elementwise(call) if _unreduced(call, call.kwargs.get("reduction")) else None


@places("cross_entropy nll_loss")
def _token_losses(call: Call) -> Place | None:
    """Cross-entropies of (places, classes, ...), one number for each place."""
    if not _unreduced(call, call.argument(6, "reduction")) or not call.rest_constant(2):
        return None
    target = call.argument(1, "target")
    other = call.place(target) if isinstance(target, Tensor) else None
    if call.first is None or other is None or len(call.shape) < 2:
        return None
    return call.first if call.first.dim == 0 and other in (call.first, CONSTANT) else None


@calls_of(token_losses)
def _own_token_losses(call: Call) -> Place | None:
    """Ours, of (..., classes): one number for each place, of that place alone."""
    place, labels = call.first, call.argument(1, "labels")
    if place is None or not isinstance(labels, Tensor) or not call.rest_constant(2):
        return None
    other = call.place(labels)
    if place.dim is None or place.counts or place.dim >= len(call.shape) - 1:
        return None
    if labels.shape != call.shape[:-1]:  # what is left of the logits' places would be others'
        return None
    return place if other in (place, CONSTANT) else None


def _unreduced(call: Call, reduction: object) -> bool:
    legacy = [call.argument(3, "size_average"), call.argument(5, "reduce")]
    return reduction == "none" and legacy == [None, None]


@places("zeros ones full tensor scalar_tensor linspace eye")
def _constant(call: Call) -> Place | None:
    """Made of numbers; a tensor among them, or in them, makes it unknown."""
    return CONSTANT if _no_tensors(call.values) else None


@places("diff searchsorted bucketize")
def _of_constants(call: Call) -> Place | None:
    """A function of constants, which looks for packed sequences among positions, say."""
    place = call.first
    return CONSTANT if place is not None and place.constant and call.rest_constant() else None


@places("new_zeros new_ones new_full zeros_like ones_like full_like")
def _constant_like(call: Call) -> Place | None:
    """Of another tensor's shape, and none of its values; `empty_like` may hold anybody's."""
    return CONSTANT if _no_tensors((*call.args[1:], *call.kwargs.values())) else None


@places("arange")
def _arange(call: Call) -> Place | None:
    if not _no_tensors(call.values):
        return None
    bounds = [call.kwargs.get(name) for name in ("start", "end", "step")]
    if call.result.dtype not in _COUNTING:
        return CONSTANT
    from_zero = len(call.args) == 1 or (len(call.args) == 2 and call.args[0] == 0)
    return Place(0, counts=True) if from_zero and bounds == [None] * 3 else CONSTANT


def _no_tensors(values: Iterable[object]) -> bool:
    return not any(True for _ in tensors_in(values))
