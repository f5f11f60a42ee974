"""`Place`: where the rows of a pass lie in a tensor; and a call whose result is to be placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Place(NamedTuple):
    """Where rows lie: index i of ``dim``, of size rows x ``inner``, is of row i // ``inner``.

    Attributes:
        dim: the dimension; None for a constant, which no row's data reached.
        inner: how many consecutive indices belong to one row.
        counts: a constant whose values are the indices of ``dim`` (`torch.arange` and its views).
    """

    dim: int | None
    inner: int = 1
    counts: bool = False

    @property
    def constant(self) -> bool:
        """Whether no row's data reached the tensor."""
        return self.dim is None or self.counts


CONSTANT = Place(None)

FIRST = Place(0)
"""(rows, ...)."""


class Call:
    """A call and the places of its tensors before it ran, since it may write to them.

    Args:
        place_of: tells the place of a tensor, None where it is unknown.
        args: of the call, as are kwargs.
    """

    result: Any

    def __init__(
        self,
        place_of: Callable[[Tensor], Place | None],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.args, self.kwargs = args, kwargs
        self._places = {id(t): place_of(t) for t in _tensors((*args, *kwargs.values()))}
        head = args[0] if args else None
        self.first = self.place(head) if isinstance(head, Tensor) else None
        self.shape = head.shape if isinstance(head, Tensor) else torch.Size()

    @property
    def values(self) -> tuple[Any, ...]:
        """All that was given."""
        return (*self.args, *self.kwargs.values())

    def place(self, tensor: Tensor) -> Place | None:
        """The place of one of the call's tensors; None where it is unknown."""
        return self._places.get(id(tensor))

    def joined(self, values: Iterable[object], dims: int) -> Place | None:
        """The one place of tensors that are broadcast to ``dims`` dimensions.

        A dimension of rows has more than one index, so that it is never itself broadcast.
        """
        found: Place = CONSTANT
        for value in values:
            if isinstance(value, tuple | list) and any(True for _ in _tensors(value)):
                return None
            if not isinstance(value, Tensor):
                continue
            place = self.place(value)
            if place is None:
                return None
            if place.dim is None or place.counts:
                continue
            place = Place(place.dim + dims - value.dim(), place.inner)
            if found not in (CONSTANT, place):
                return None
            found = place
        return found

    def rest_constant(self, skipped: int = 1) -> bool:
        """Whether every tensor but the first ``skipped`` arguments is a constant."""
        places = [self.place(t) for t in _tensors((*self.args[skipped:], *self.kwargs.values()))]
        return all(p is not None and p.constant for p in places)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its position or name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def dim(self, position: int, name: str = "dim", default: Any = None) -> int | None:
        """A dimension, counted from the front; None where it is no single number."""
        found = self.argument(position, name, default)
        if not isinstance(found, int) or isinstance(found, bool):
            return None
        return found % max(1, len(self.shape))


def _tensors(values: Sequence[object]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
