"""`Place`: where the rows of a pass lie in a tensor; a call whose result is placed; its rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
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

_NO_SHAPE = torch.Size()


def no_count(place: Place | None) -> Place | None:
    """The place of what is no index any more: looked up by a count, or written over."""
    return CONSTANT if place is not None and place.counts else place


class Call:
    """A call and the places of its tensors.

    The first argument's place is taken before the call runs, as a function may write to it. Any
    other's is taken when a rule asks: if the call wrote to that tensor, or to one that shares its
    memory, its version has moved and its place is unknown by then.

    Args:
        place_of: tells the place of a tensor, None where it is unknown.
        args: of the call, as are kwargs.
    """

    __slots__ = ("_head", "_place_of", "args", "first", "kwargs", "result", "shape")
    args: tuple[Any, ...]
    first: Place | None
    kwargs: Mapping[str, Any]
    result: Any
    shape: torch.Size

    def __init__(
        self,
        place_of: Callable[[Tensor], Place | None],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self.args, self.kwargs = args, kwargs
        self._place_of = place_of
        self._head = head = args[0] if args else None
        if isinstance(head, Tensor):
            self.first, self.shape = place_of(head), head.shape
        else:
            self.first, self.shape = None, _NO_SHAPE

    @property
    def values(self) -> tuple[Any, ...]:
        """All that was given."""
        return (*self.args, *self.kwargs.values()) if self.kwargs else self.args

    def place(self, tensor: Tensor) -> Place | None:
        """The place of one of the call's tensors; None where it is unknown."""
        return self.first if tensor is self._head else self._place_of(tensor)

    def joined(self, values: Iterable[object], dims: int) -> Place | None:
        """The one place of tensors that are broadcast to ``dims`` dimensions.

        A dimension of rows has more than one index, so that it is never itself broadcast.
        """
        joined = CONSTANT
        for value in values:
            if not isinstance(value, Tensor):
                if isinstance(value, tuple | list) and any(True for _ in tensors_in(value)):
                    return None
                continue
            place = self.place(value)
            if place is None:
                return None
            if place.dim is None or place.counts:
                continue
            before = dims - value.dim()
            if before:
                place = Place(place.dim + before, place.inner)
            if joined is not CONSTANT and joined != place:
                return None
            joined = place
        return joined

    def rest_constant(self, skipped: int = 1) -> bool:
        """Whether every tensor but the first ``skipped`` arguments is a constant."""
        places = [self.place(t) for t in tensors_in((*self.args[skipped:], *self.kwargs.values()))]
        return all(p is not None and p.constant for p in places)

    def rest_known(self) -> bool:
        """Whether the place of every tensor but the first argument is known.

        Asked before any rule, which then need not think of it: functions take tensors for sizes,
        scales and other single numbers too. One number without an unknown place is a constant.
        """
        for value in self.values[1:] if self.args else self.values:
            if isinstance(value, Tensor):
                if self.place(value) is None:
                    return False
                continue
            several = isinstance(value, tuple | list)
            if several and any(self.place(tensor) is None for tensor in tensors_in(value)):
                return False
        return True

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by its position or name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def dim(self, position: int, name: str = "dim", default: Any = None) -> int | None:
        """A dimension, counted from the front; None where it is no single number."""
        dim = self.argument(position, name, default)
        if not isinstance(dim, int) or isinstance(dim, bool):
            return None
        return dim % max(1, len(self.shape))


def tensors_in(values: Iterable[object]) -> Iterator[Tensor]:
    """The tensors among ``values``, and in lists of theirs."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from tensors_in(value)


Rule: TypeAlias = Callable[[Call], Place | None]
"""The place of a call's result; None where it is unknown.

It is asked only where the places of all tensors but the first are known (`Call.rest_known`), and
may answer with a place only if, for every value of the arguments, an element of row r in the
result is a function of constants and of the arguments' elements of row r. See `engines.rows` for
what follows.
"""

PLACES: dict[Callable[..., Any], Rule] = {}
"""The rules, by torch's functions."""


def places(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for all functions and methods of these names (split at spaces)."""

    def register(rule: Rule) -> Rule:
        PLACES.update(dict.fromkeys(named(" ".join(names)), rule))
        return rule

    return register


def calls_of(function: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register a rule for a function of ours that torch's modes are asked about."""

    def register(rule: Rule) -> Rule:
        PLACES[function] = rule
        return rule

    return register


def named(names: str) -> list[Callable[..., Any]]:
    """All functions and methods of these names, wherever torch keeps them."""
    homes = (torch, torch.Tensor, F, torch.functional, torch.linalg)
    known = [getattr(home, name, None) for name in names.split() for home in homes]
    return [function for function in known if callable(function)]


def getter(name: str) -> Callable[..., Any]:
    """What stands for reading a tensor's property."""
    read: Callable[..., Any] = getattr(torch.Tensor, name).__get__
    return read


def setter(name: str) -> Callable[..., Any]:
    """What stands for setting a tensor's property."""
    write: Callable[..., Any] = getattr(torch.Tensor, name).__set__
    return write
