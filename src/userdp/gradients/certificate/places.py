r"""`Place`: where the rows of a pass lie in a tensor; and `Call`, what an operation is given.

An operation is one of torch's dispatcher (``aten``), to which its functions, methods and operators
all come down: ``x @ w``, ``F.linear`` and ``einsum`` to views and ``mm`` or ``bmm``, ``x[..., 1:]``
to ``slice``, ``x[0] = y`` to ``select`` and ``copy_``. Rules tell the places of their results
(`certificate.operations`). What memory is, under another shape or through another view, is told
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor


class Place(NamedTuple):
    """Where rows lie: index i of ``dim`` is of row (i // ``inner``) modulo the rows.

    The size of ``dim`` is ``outer`` x rows x ``inner``.

    Attributes:
        dim: the dimension; None for a constant, which no row's data reached.
        inner: how many consecutive indices belong to one row.
        outer: how often all rows come, one after another.
        counts: a constant whose values are the indices of ``dim`` (`torch.arange` and its views).
    """

    dim: int | None
    inner: int = 1
    outer: int = 1
    counts: bool = False

    @property
    def constant(self) -> bool:
        """Whether no row's data reached the tensor."""
        return self.dim is None or self.counts


CONSTANT = Place(None)

FIRST = Place(0)
"""(rows, ...)."""

PlaceOf: TypeAlias = Callable[[Tensor], Place | None]


class Call:
    """A call of an operation, and the places that its tensors have before it runs.

    Args:
        place_of: tells the place of a tensor, None where it is unknown.
        operation: of torch's dispatcher.
        args: of the call, as are kwargs.

    Attributes:
        name: of the operation, such as ``add_``.
        given: its arguments by the names of its schema, defaults too.
        head: the first tensor, and shape: its shape.
        written: the tensors to which the operation says that it writes.
        result: the tensor that it returned, the first one of several.
    """

    result: Tensor

    def __init__(
        self, place_of: PlaceOf, operation: Any, args: Iterable[object], kwargs: Mapping[str, Any]
    ) -> None:
        known = operation._schema.arguments
        self.name = operation._schema.name.removeprefix("aten::")
        self.tags = operation.tags
        self.given: dict[str, Any] = {a.name: a.default_value for a in known}
        self.given |= dict(zip([a.name for a in known], args, strict=False)) | dict(kwargs)
        self.written = list(
            tensors_in(self.given[a.name] for a in known if a.alias_info and a.alias_info.is_write)
        )
        self.tensors = list(tensors_in(self.given.values()))
        self._places = {id(tensor): place_of(tensor) for tensor in self.tensors}
        self.head = self.tensors[0] if self.tensors else None
        self.shape = torch.Size() if self.head is None else self.head.shape

    def place(self, tensor: Tensor | None) -> Place | None:
        """The place of one of the call's tensors; None where it is unknown."""
        return CONSTANT if tensor is None else self._places[id(tensor)]

    @property
    def first(self) -> Place | None:
        """The place of the first tensor."""
        return self.place(self.head)

    def constants(self, skipped: int = 0) -> bool:
        """Whether all tensors but the first ``skipped`` are constants."""
        places = [self.place(tensor) for tensor in self.tensors[skipped:]]
        return all(place is not None and place.constant for place in places)

    def joined(self, values: Iterable[object], dims: int) -> Place | None:
        """See `joined`."""
        return joined(self.place, values, dims)

    def dims(self, name: str = "dim") -> list[int]:
        """Dimensions that an argument names, counted from the front; all where it names none."""
        found = self.given.get(name)
        found = [found] if isinstance(found, int) else found
        return [dim % max(1, len(self.shape)) for dim in found or range(len(self.shape))]


def joined(place_of: PlaceOf, values: Iterable[object], dims: int) -> Place | None:
    """The one place of tensors that are broadcast to ``dims`` dimensions; None if they have none.

    A dimension of rows has more than one index, so that it is never itself broadcast.
    """
    found = CONSTANT
    for tensor in tensors_in(values):
        place = place_of(tensor)
        if place is None:
            return None
        if place.dim is None or place.counts:
            continue
        place = place._replace(dim=place.dim + dims - tensor.dim())
        if found not in (CONSTANT, place):
            return None
        found = place
    return found


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """The tensors among ``values``, and in lists of theirs."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)


def regrouped(place: Place | None, before: Sequence[int], after: Sequence[int]) -> Place | None:
    """Where rows lie once shape ``before`` is seen as ``after``, both in row-major order.

    Ahead of the rows stand P = ``outer`` x (sizes before ``dim``) blocks, in which a row has
    L = ``inner`` x (sizes after ``dim``) numbers. A dimension of the new shape counts the rows if
    the sizes before it divide P, those after it divide L, and its own is what is left.
    """
    if place is None or place.dim is None:
        return place
    prefix = place.outer * math.prod(before[: place.dim])
    long = place.inner * math.prod(before[place.dim + 1 :])
    rows = before[place.dim] // (place.inner * place.outer)
    for dim, size in enumerate(after):
        ahead, behind = math.prod(after[:dim]), math.prod(after[dim + 1 :])
        if ahead and behind and prefix % ahead == 0 and long % behind == 0:
            found = Place(dim, long // behind, prefix // ahead, place.counts)
            if size == found.outer * rows * found.inner and (not place.counts or size == rows):
                return found
    return CONSTANT if place.counts else None


def whole(
    base: Tensor, before: Place | None, view: Tensor, had: Place | None, after: Place | None
) -> Place | None:
    """Where rows lie in ``base`` after a write to ``view``, which shares its memory.

    Args:
        base: which ``view`` is a part of, as far as can be seen.
        before: the place that ``base`` had.
        view: that was written to.
        had: the place that ``view`` had.
        after: that it has now.
    """
    if before is None or had is None or after is None:
        return None
    if after.constant:
        return CONSTANT if before.counts else before
    if not before.constant:
        return before if had == after else None
    # In dense memory index i of a dimension is (address // step) modulo its size. The view is to
    # leave one dimension whole, and its others are to stay within that dimension's steps or to pass
    # over all of it: then index i of it is index i of the view.
    assert after.dim is not None
    step, size = view.stride(after.dim), view.shape[after.dim]
    same = [at for at in range(base.dim()) if (base.stride(at), base.shape[at]) == (step, size)]
    steps = [(view.stride(at), view.shape[at]) for at in range(view.dim()) if at != after.dim]
    offset = int(view.storage_offset()) - int(base.storage_offset())
    inner = offset % step + sum(each * (n - 1) for each, n in steps if each < step)
    outer = all(each % (step * size) == 0 for each, n in steps if each >= step and n > 1)
    fits = inner < step and outer and offset // step % size == 0
    return after._replace(dim=same[0]) if fits and same and base.is_contiguous() else None


def same_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are the same numbers; where a dimension has one index, no step tells."""
    if (one.data_ptr(), one.shape, one.dtype) != (two.data_ptr(), two.shape, two.dtype):
        return False
    steps = zip(one.shape, one.stride(), two.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in steps)
