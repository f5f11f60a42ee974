"""The same numbers in another shape: views, permutations, copies, and tensors put together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from userdp.gradients.certificate.places.place import CONSTANT, PLACES, Call, Place, getter, places


@places("view reshape flatten unflatten squeeze unsqueeze view_as reshape_as")
def _reshaped(call: Call) -> Place | None:
    """The same numbers in the same order, under another shape."""
    if any(isinstance(value, torch.dtype) for value in call.values):
        return None
    return regrouped(call.first, call.shape, call.result.shape)


def regrouped(place: Place | None, before: Sequence[int], after: Sequence[int]) -> Place | None:
    """Where rows lie once shape ``before`` is seen as ``after``, both in row-major order.

    With P the product of the sizes before ``dim``, each of P blocks holds the rows one after
    another, L = inner x (sizes after ``dim``) numbers each. A dimension of the new shape counts
    them if the sizes before it multiply to P and those after it divide L.
    """
    if place is None or place.dim is None:
        return place
    prefix = math.prod(before[: place.dim])
    long = place.inner * math.prod(before[place.dim + 1 :])
    rows = before[place.dim] // place.inner
    ahead = 1
    for dim, size in enumerate(after):
        if ahead == prefix:
            suffix = math.prod(after[dim + 1 :])
            inner = 0 if suffix == 0 or long % suffix else long // suffix
            if inner and size == rows * inner and (inner == 1 or not place.counts):
                return Place(dim, inner, place.counts)
        ahead *= size
    return CONSTANT if place.counts else None


def _moved(place: Place | None, order: Sequence[int]) -> Place | None:
    """Dimension i of the result is dimension ``order[i]`` of the argument."""
    if place is None or place.dim is None:
        return place
    return Place(order.index(place.dim), place.inner, place.counts)


@places("transpose swapaxes swapdims")
def _transpose(call: Call) -> Place | None:
    one, two = call.dim(1, "dim0"), call.dim(2, "dim1")
    if one is None or two is None:
        return None
    order = list(range(len(call.shape)))
    order[one], order[two] = two, one
    return _moved(call.first, order)


@places("permute")
def _permute(call: Call) -> Place | None:
    dims = call.args[1:] or call.kwargs.get("dims", ())
    if len(dims) == 1 and isinstance(dims[0], tuple | list):
        dims = dims[0]
    return _moved(call.first, [d % len(call.shape) for d in dims]) if dims else None


def _swap_last(call: Call) -> Place | None:
    dims = len(call.shape)
    return _moved(call.first, [*range(dims - 2), dims - 1, dims - 2]) if dims >= 2 else None


PLACES[getter("mT")] = _swap_last
PLACES[getter("T")] = lambda call: _moved(call.first, range(len(call.shape))[::-1])


@places("expand broadcast_to expand_as")
def _expand(call: Call) -> Place | None:
    """New dimensions come in front; the one that counts keeps its size."""
    place = call.first
    if place is None or place.dim is None:
        return place
    dim = place.dim + call.result.dim() - len(call.shape)
    if call.result.shape[dim] == call.shape[place.dim]:
        return place._replace(dim=dim)
    return CONSTANT if place.counts else None


@places("repeat")
def _repeat(call: Call) -> Place | None:
    place = _expand(call)
    return CONSTANT if place is not None and place.counts else place


@places("repeat_interleave")
def _repeat_interleave(call: Call) -> Place | None:
    times, dim, place = call.argument(1, "repeats"), call.dim(2), call.first
    if not isinstance(times, int) or dim is None or place is None:
        return None
    if place.constant:
        return CONSTANT
    return place._replace(inner=place.inner * (times if dim == place.dim else 1))


@places("unbind")
def _unbind(call: Call) -> Place | None:
    dim, place = call.dim(1, "dim", 0), call.first
    if place is None or place.dim is None or place.counts:
        return None if place is None else CONSTANT
    if dim is None or dim == place.dim:
        return None
    return place._replace(dim=place.dim - (dim < place.dim))


@places("cat concat concatenate")
def _cat(call: Call) -> Place | None:
    place, dim = _together(call, call.result.dim())
    if place is None or place.constant:
        return place
    return None if dim == place.dim else place


@places("stack")
def _stack(call: Call) -> Place | None:
    place, dim = _together(call, call.result.dim() - 1)
    if place is None or place.dim is None:
        return place
    return place._replace(dim=place.dim + (dim <= place.dim))


def _together(call: Call, dims: int) -> tuple[Place | None, int]:
    """The one place of a list of tensors of ``dims`` dimensions, and along what they are joined."""
    tensors, dim = call.argument(0, "tensors"), call.argument(1, "dim", 0)
    if not isinstance(tensors, tuple | list) or not isinstance(dim, int):
        return None, 0
    return call.joined(tensors, dims), dim % call.result.dim()
