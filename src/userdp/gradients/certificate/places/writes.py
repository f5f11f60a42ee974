"""Writes in place: what becomes of the tensor that was written to, and of the one it is a view of.

A function that writes moves the version of all tensors that share the memory, and so ends what was
known of them. Two of them are known again: the tensor that was written to, by the function's own
rule or, for ``tensor[index] = value``, by `assigned`; and the one that it is a view of, by `whole`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import EllipsisType
from typing import Any

from torch import Tensor

from userdp.gradients.certificate.places.lookups import sliced
from userdp.gradients.certificate.places.place import Call, Place, no_count, tensors_in


@functools.cache
def may_write(function: Callable[..., Any]) -> bool:
    """Whether a function's name says that it writes to its first argument: never to a copy of that.

    >>> may_write(Tensor.add_), may_write(Tensor.__iadd__), may_write(Tensor.add)
    (True, True, False)
    """
    name = getattr(function, "__name__", "")
    if name.startswith("__"):
        return name.startswith("__i") and name != "__invert__"
    return name.endswith("_")


def written_to(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[Tensor]:
    """The tensors that a call says it writes to: its first argument, a list of such, or ``out``."""
    if args and (function is Tensor.__setitem__ or may_write(function)):
        yield from tensors_in(args[:1])
    if kwargs and "out" in kwargs:
        yield from tensors_in((kwargs["out"],))


def assigned(call: Call) -> Place | None:
    """Where rows lie in ``tensor`` after ``tensor[index] = value``, with slices and numbers.

    Each row's part of what was written must come from that row.
    """
    tensor, index, value = call.args
    before = call.first
    entries: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    plain = (int, slice, EllipsisType, type(None))
    bounds = [b for e in entries if isinstance(e, slice) for b in (e.start, e.stop, e.step)]
    if before is None or not all(isinstance(e, plain) and not isinstance(e, bool) for e in entries):
        return None
    if any(isinstance(bound, Tensor) for bound in bounds):
        return None
    if not isinstance(value, Tensor):
        return no_count(before)
    written = call.place(value)
    if written is None or written.constant:
        return no_count(before) if written is not None else None
    if before.constant:
        candidates = [Place(dim, written.inner) for dim in range(tensor.dim())]
    else:
        candidates = [before]
    # The value is broadcast to what the index leaves of the tensor: dimensions count from behind.
    left = sum(not isinstance(e, int) for e in entries if e is not Ellipsis)
    left += tensor.dim() - sum(e is not None and e is not Ellipsis for e in entries)
    assert written.dim is not None
    where = Place(written.dim + left - value.dim(), written.inner)
    for place in candidates:
        assert place.dim is not None
        fits = tensor.shape[place.dim] == value.shape[written.dim]
        if fits and sliced(place, tensor.shape, entries) == where:
            return place
    return None


def whole(base: Tensor, before: Place | None, call: Call, after: Place | None) -> Place | None:
    """Where rows lie in ``base`` after a write to a view of it.

    Args:
        base: that the first argument of the call is a view of.
        before: its place before the call.
        call: with the place that the view had.
        after: the view's place now.
    """
    if before is None or after is None or call.first is None:
        return None
    if after.constant:
        return no_count(before) if before.constant or call.first == after else None
    if not before.constant:
        return before if call.first == after else None
    view = call.args[0]
    dim = after.dim
    assert dim is not None
    if not base.is_contiguous() or view.stride() != base.stride():
        return None
    # Memory lies dense, so that each place in it is one index in every dimension. The view is a
    # block of the base that leaves the dimension whole: index i is index i in both.
    offset = view.storage_offset() - base.storage_offset()
    for at, (step, size, part) in enumerate(
        zip(base.stride(), base.shape, view.shape, strict=True)
    ):
        first, offset = divmod(offset, step)
        if not 0 <= first <= size - part or (at == dim and part != size):
            return None
    return after
