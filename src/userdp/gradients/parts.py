"""What an object of Python holds: the parts in which it could keep something from pass to pass."""

from __future__ import annotations

import array
import functools
import io
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from torch import Tensor

MANY: Final = (Mapping, list, tuple, set, frozenset, deque)
"""Containers: told by what is in them, since equal ones are made anew."""

BYTES: Final = (bytearray, array.array, memoryview)
"""Told by their bytes."""

_DATA: Final = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    *MANY,
    *BYTES,
    Tensor,
    np.ndarray,
)

_LIBRARIES: Final = sys.stdlib_module_names | {
    "accelerate", "bitsandbytes", "numpy", "peft", "torch", "transformers", "trl", "userdp"
}  # fmt: skip
"""Their functions are followed to data that they name, not to objects, and their classes not at
all: these cache plans, kernels and shapes, which are no answers."""

_Parts: TypeAlias = Iterator[tuple[str | None, Any]]
"""Each with the name that the code has for it; None where data names it: a key, a place."""


def parts_of(value: Any) -> _Parts:
    """The parts of ``value``; objects that are made by looking at it are no parts.

    >>> class Tally:
    ...     def __init__(self):
    ...         self.total = 0
    >>> dict(parts_of(Tally()))["total"], list(parts_of([7]))
    (0, [(None, 1), (None, 7)])
    """
    if isinstance(value, type):
        yield from _of_class(value)
        return
    kind: type = type(value)
    read = _reader_of(kind)
    if read is not None:
        yield from read(value)
    yield from getattr(value, "__dict__", {}).items()
    if not isinstance(value, Tensor | types.FunctionType):
        yield from _of_slots(value)
        if not is_library(type(value)):
            yield "class", type(value)


def _of_mapping(value: Mapping[Any, Any]) -> _Parts:
    yield None, len(value)
    for key, part in value.items():
        yield None, key
        yield None, part


def _of_many(value: Any) -> _Parts:
    yield None, len(value)
    yield from ((None, part) for part in value)


def _of_method(value: types.MethodType) -> _Parts:
    yield "self", value.__self__
    yield "function", value.__func__


def _of_partial(value: partial[Any]) -> _Parts:
    yield "function", value.func
    yield "arguments", value.args
    yield "keywords", value.keywords


def _of_generator(value: types.GeneratorType[Any, Any, Any]) -> _Parts:
    if value.gi_frame is not None:
        yield "place", value.gi_frame.f_lasti
        yield from value.gi_frame.f_locals.items()


def _of_memory(value: io.BytesIO | io.StringIO) -> _Parts:
    if not value.closed:
        yield "contents", value.getvalue()


def _of_error(value: BaseException) -> _Parts:
    yield "args", value.args


def _of_function(function: types.FunctionType) -> _Parts:
    """Defaults, the closure, and what it names of its module's globals."""
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not filled yet
            yield key, cell.cell_contents
    known = function.__globals__
    library = is_library(function)
    for key in _names(function.__code__):
        if key in known and (not library or isinstance(known[key], _DATA)):
            yield key, known[key]


_READERS: Final[tuple[tuple[Any, Callable[[Any], _Parts]], ...]] = (
    (Mapping, _of_mapping),
    (MANY, _of_many),
    (types.MethodType, _of_method),
    (partial, _of_partial),
    (types.FunctionType, _of_function),
    (types.GeneratorType, _of_generator),
    ((io.BytesIO, io.StringIO), _of_memory),
    (BaseException, _of_error),
)


@functools.lru_cache(maxsize=1 << 12)
def _reader_of(kind: type) -> Callable[[Any], _Parts] | None:
    """Told of types, of which there are few; bounded, since a model may make new ones."""
    return next((read for of, read in _READERS if issubclass(kind, of)), None)


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals and attributes that a function names, or one that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_class(kind: type) -> _Parts:
    """Data that a class keeps for all its objects, and what its ``__call__`` is."""
    for base in kind.__mro__:
        if is_library(base):
            continue
        for key, part in vars(base).items():
            if isinstance(part, _DATA) and not (key.startswith("__") or key.startswith("_abc_")):
                yield key, part
        call = vars(base).get("__call__")
        if isinstance(call, types.FunctionType):
            yield "__call__", call


def _of_slots(value: Any) -> _Parts:
    """What ``__slots__`` of its class and of those above hold, by whatever name."""
    for base in type(value).__mro__:
        if "__slots__" in vars(base):
            for key, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    with suppress(AttributeError):  # not filled yet
                        yield key, member.__get__(value)


def is_library(made: type | types.FunctionType) -> bool:
    """Whether a class or a function is the standard library's or one of those known here."""
    return module_of(made).partition(".")[0] in _LIBRARIES


def module_of(made: type | types.FunctionType) -> str:
    """The name of the module that made a class or a function; empty where none is told.

    A class of classes that is written in C may say that its objects will have the name.
    """
    name = made.__module__
    return name if isinstance(name, str) else ""
