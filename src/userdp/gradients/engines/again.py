"""Checkpointed code, which runs again in the backward pass, must save there what it saved first.

A graph that was proved holds derivatives of the functions that ran; what they are taken at is saved
beside it. Under `torch.utils.checkpoint` nothing is saved: the code runs again on the way back, and
may find something else by then, such as a variable bound anew, a tensor written to, a count of its
own calls. torch compares the shapes of what it saves with those of before, and no more.

So each tensor that is saved gets a **label**: the function that saved it, which of its savings it
is, and what the call was given: of tensors the places and shapes, of all else the value. *What is
proved:* where the labels of both runs agree, each function's derivative is taken at arguments that
belong to the rows that the proof knew, whatever their values; and a derivative is kept apart by
rows for every value of the arguments, since the function is (`engines.rows`). What the code reads
from data while it runs again ends the proof as it does the first time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from userdp.gradients.engines.places.place import Place

_KNOWN: Final = (
    "torch.utils.checkpoint",
    "torch.autograd.graph",
    "userdp.gradients.engines.again",
)

_WRAPPER: Final = "torch._dynamo.eval_frame"

_KEY: Final = "_userdp_saved"

Hooks: TypeAlias = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]
"""What a tensor goes through when it is saved, and when it is asked for."""

_Label: TypeAlias = tuple[object, ...]


class _Saved(NamedTuple):
    handle: Any
    label: _Label


def hooks_on() -> Hooks | None:
    """What is saved goes through these now; torch keeps its own on while checkpointed code runs."""
    hooks: Hooks | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


def own_unpacking() -> bool:
    """Whether what is saved for backward passes goes through somebody's own function.

    Those of torch (activation checkpointing, copies in the host's memory) give back what they got.
    """
    hooks = hooks_on()
    return hooks is not None and not all(_home(hook) in _KNOWN for hook in hooks)


def _home(hook: Any) -> object:
    """The module that a function was written in; torch wraps those of checkpointing."""
    if isinstance(hook, FunctionType) and hook.__globals__.get("__name__") == _WRAPPER:
        hook = getattr(hook, "__wrapped__", None)
    return hook.__globals__.get("__name__") if isinstance(hook, FunctionType) else None


def is_stop(error: BaseException) -> bool:
    """Whether torch ended what runs again, since all that it needs is there: nobody's data."""
    kind = type(error)
    return (kind.__module__, kind.__name__) == ("torch.utils.checkpoint", "_StopRecomputationError")


class Again:
    """The labels of one pass.

    Attributes:
        used: whether anything was checkpointed.
        strayed: whether anything that ran again may have mixed rows; the pass is not proved then.
    """

    def __init__(self) -> None:
        self.used = self.strayed = False

    def saving(
        self, hooks: Hooks | None, describe: Callable[[], _Label]
    ) -> AbstractContextManager[None] | None:
        """Within the call that ``describe`` tells of, label what ``hooks`` save; None if nothing.

        Only those of `torch.utils.checkpoint` give back anything but what they were given.
        """
        if hooks is None or _home(hooks[0]) != "torch.utils.checkpoint":
            return None
        self.used = True
        return self._labelling(hooks, describe())

    @contextmanager
    def _labelling(self, hooks: Hooks, call: _Label) -> Iterator[None]:
        pack, unpack = hooks
        numbers = itertools.count()

        def save(tensor: Tensor) -> _Saved:
            tensor = tensor.detach()  # which checkpointing then keeps as it is
            label = (*call, next(numbers), tensor.shape, tensor.dtype)
            tensor.__dict__[_KEY] = label
            return _Saved(pack(tensor), label)

        def give(saved: _Saved) -> Tensor:
            tensor = unpack(saved.handle)
            self.strayed |= tensor.__dict__.get(_KEY) != saved.label
            return tensor

        with saved_tensors_hooks(save, give):
            yield


def described(
    place_of: Callable[[Tensor], Place | None],
    name_of: Callable[[object], str | None],
    values: Iterable[object],
) -> Iterator[object]:
    """What a call was given, as far as it decides what is saved, and whose that is.

    A tensor of unknown place is like no other, itself in another run included.
    """
    for value in values:
        if isinstance(value, Tensor):
            place = place_of(value)
            yield object() if place is None else (place, value.shape, value.dtype)
            yield value.requires_grad, name_of(value) is not None
        elif isinstance(value, tuple | list):
            yield type(value), tuple(described(place_of, name_of, value))
        elif isinstance(value, Mapping):
            yield tuple(value), tuple(described(place_of, name_of, value.values()))
        elif isinstance(value, slice):
            parts = value.start, value.stop, value.step
            yield slice, tuple(described(place_of, name_of, parts))
        else:
            yield type(value), value
