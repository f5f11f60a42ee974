"""What is noted of one value, to be compared with what is noted of it later."""

from __future__ import annotations

import functools
import logging
import random
import types
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from userdp.gradients.model_randomness import GENERATORS, generators
from userdp.gradients.parts import MANY, is_library

SIMPLE: Final = frozenset([bool, int, str, type(None)])
"""Noted as they are, with their types: 1 equals True, and is another thing to a model."""

FEW_BYTES: Final = 1 << 16
"""Up to here a tensor's numbers are noted too."""

_OPAQUE: Final = (
    types.CodeType,
    types.FrameType,
    types.TracebackType,
    functools._lru_cache_wrapper,
    logging.Logger,  # it remembers which levels are asked for
)


_TENSORS: Final = (Tensor, nn.Parameter)

_PLAIN: Final = SIMPLE | {float}
"""Of which a container is noted with what it holds, in one."""

_MOST_PLAIN: Final = 64
"""Entries of such a container at most; of more, each is noted by itself, and once in a reading."""


class Note(NamedTuple):
    """What is noted of values of a type.

    Attributes:
        taken: takes it; None of a container, of which equal ones are made anew: what it holds is
            told with it.
        ends: whether what the value holds is not followed.
    """

    taken: Callable[[Any], object] | None
    ends: bool = False


@functools.lru_cache(maxsize=1 << 12)
def note_of(kind: type) -> Note:
    """Told of types, of which there are few: each step asks for thousands of values.

    The cache is bounded, since a model may make new types in each pass.
    """
    known = kind in SIMPLE or is_library(kind)
    for base, read in _VALUES.items():
        if issubclass(kind, base):
            taken = functools.partial(_with_kind, kind, read)
            return Note(taken, ends=known and base is not np.ndarray)
    if issubclass(kind, Tensor):
        return Note(_of_tensor)
    if issubclass(kind, weakref.ref):  # whatever holds what it points to is followed there
        return Note(type, ends=True)
    if issubclass(kind, MANY):
        return Note(None)
    return Note(_of_object, ends=issubclass(kind, _OPAQUE))


def plain_parts(value: Any) -> tuple[object, ...] | None:
    """All that a container holds; None where that is not plain, or where there is much of it.

    Of Python's own dictionaries, lists and tuples of numbers and words, of which models have many.
    """
    kind = type(value)
    if kind is dict:
        parts = (*value.keys(), *value.values())
    elif kind is list or kind is tuple:
        parts = tuple(value)
    else:
        return None
    kinds = tuple(map(type, parts))
    if len(parts) > _MOST_PLAIN or not _PLAIN.issuperset(kinds):
        return None
    if float in kinds:  # NaN is not itself
        parts = tuple(map(repr, parts))
    return kinds, parts


def _with_kind(kind: type, read: Callable[[Any], object], value: Any) -> object:
    return kind, read(value)


def _of_array(value: Any) -> tuple[object, ...]:
    value = np.ndarray.view(value, np.ndarray)  # a subclass may answer otherwise, and write
    return value.dtype.str, value.shape, value.tobytes()


def _of_object(value: Any) -> tuple[object, ...]:
    """Which one it is, and the bytes that some kinds hold: a ``bytearray``, an ``array``."""
    try:
        memory = memoryview(value)
    except TypeError:
        return type(value), id(value)
    except ValueError:  # released, or closed
        return type(value), id(value), None
    with memory:
        return type(value), id(value), memory.tobytes()


def _of_tensor(value: Tensor) -> tuple[object, ...]:
    return (
        id(value),
        writes(value),
        value.requires_grad,
        *_memory(value),
        *_gradient(value),
        *_numbers(value),
    )


def _memory(value: Tensor) -> tuple[int, ...]:
    """Where its numbers lie: `torch.utils.swap_tensors` counts no write."""
    return (value.data_ptr(),) if _is_plain(value) else ()


def _numbers(value: Tensor) -> tuple[bytes, ...]:
    """Of a small one on the host, what it holds: `F.batch_norm` and ``.data`` count no write."""
    if not is_small(value) or value.device.type != "cpu":
        return ()
    return (bytes_of(value).numpy().tobytes(),)


def is_small(value: Tensor) -> bool:
    """Whether all of a tensor's numbers are noted, too."""
    return _is_plain(value) and 0 < value.nbytes <= FEW_BYTES


def bytes_of(value: Tensor) -> Tensor:
    """A plain tensor's memory, flat; a view of it where it is contiguous."""
    flat = value.detach().as_subclass(Tensor).reshape(-1)
    return (torch.view_as_real(flat).view(-1) if flat.is_complex() else flat).view(torch.uint8)


def _is_plain(value: Tensor) -> bool:
    """Whether it is its own numbers, one after another, and not a shell around other tensors."""
    return (
        value.layout == torch.strided
        and not value.is_quantized
        and (type(value) in _TENSORS or not is_traceable_wrapper_subclass(value))
    )


def _gradient(value: Tensor) -> tuple[int, ...]:
    """Of a tensor that a backward pass adds to: which tensor that is, and its count of writes."""
    if not value.is_leaf or value.grad is None:
        return ()
    return id(value.grad), writes(value.grad)


def writes(value: Tensor) -> int:
    """A tensor's count of writes; 0 of what was made in inference mode, where none are counted."""
    try:
        return value._version
    except RuntimeError:
        return 0


def _of_generator(value: Any) -> object:
    """The state of a generator that is nobody's default, whose numbers go from user to user."""
    if value in (random._inst, np.random.mtrand._rand, *generators().values()):
        return None
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.SystemRandom):  # it has none
        return id(value)
    if isinstance(value, random.Random):
        return value.getstate()
    state = value.get_state(legacy=False) if isinstance(value, np.random.RandomState) else None
    return _plain(state or getattr(value, "bit_generator", value).state)


def _plain(state: Any) -> object:
    if isinstance(state, dict):
        return tuple((key, _plain(part)) for key, part in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


_VALUES: Final[dict[type, Callable[[Any], object]]] = {
    bool: repr,
    int: int.__repr__,
    float: float.__repr__,  # NaN is not itself
    complex: complex.__repr__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    np.ndarray: _of_array,
    np.generic: lambda value: value.tobytes(),
    type(None): type,
    torch.dtype: repr,
    torch.device: repr,
    **dict.fromkeys(GENERATORS, _of_generator),
}
"""Told by what they are."""
