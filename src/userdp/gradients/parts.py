"""What an object of Python holds: the parts in which it could keep something from pass to pass.

Attributes, slots, variables of closures and the globals that a function names have names. Whatever
else an object holds, in C, Python's garbage collector knows: the list of a bound ``append``, the
factory of a dictionary, the cause of an error.
"""

from __future__ import annotations

import functools
import gc
import inspect
import io
import sys
import sysconfig
import types
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from torch import Tensor
from torch.nn import Parameter

MANY: Final = (Mapping, list, tuple, set, frozenset, deque)
"""Containers: told by what is in them, since equal ones are made anew."""

_ALONE: Final = (
    *(bool, int, float, complex, str, bytes, type(None)),
    *(bytearray, memoryview, Tensor, np.ndarray),
)
_DATA: Final = (*_ALONE, *MANY)

_LIBRARIES: Final = sys.stdlib_module_names | {
    "_pytest", "accelerate", "bitsandbytes", "causal_conv1d", "datasets", "einops", "flash_attn",
    "mamba_ssm", "numpy", "pandas", "peft", "pyarrow", "safetensors", "scipy", "tokenizers",
    "torch", "torchao", "tqdm", "transformers", "triton", "trl", "userdp", "xformers",
}  # fmt: skip
"""Their functions are followed to data that they name, not to objects, and their classes not at
all: these cache plans, kernels and shapes, which are no answers."""

_STANDARD: Final = ("stdlib", "platstdlib")
"""Where Python's own modules lie."""

_NOT_STATE: Final = ("__dict__", "__weakref__", "__doc__", "__module__", "__slotnames__")
"""Of what a class has; and what `abc` remembers of questions."""

_Parts: TypeAlias = Iterator[tuple[str | None, Any]]
"""Each with the name that the code has for it; None where data names it: a key, a place."""


def parts_of(value: Any) -> _Parts:
    """The parts of ``value``; an object that is made by looking at it is a container of others.

    >>> class Tally:
    ...     def __init__(self):
    ...         self.total = 0
    >>> dict(parts_of(Tally()))["total"], list(parts_of([7])), list(parts_of([].append))[0]
    (0, [(None, 1), (None, 7)], (None, []))
    """
    if isinstance(value, type):
        yield from _of_class(value)
        return
    if isinstance(value, types.ModuleType):
        yield from _of_whole_module(value)
        if type(value) is not types.ModuleType and not is_library(type(value)):
            yield "class", type(value)
        return
    kind: type = type(value)
    read = _reader_of(kind)
    if read is not None:
        try:
            yield from read(value)
        except Exception:  # a container of somebody's own; what it is made of comes below
            yield None, None
    own = _attributes_of(value)
    if own:
        yield from list(own.items())  # threads may add to it meanwhile
    if isinstance(value, types.FunctionType):
        return
    if isinstance(value, Tensor):
        if value._backward_hooks and not isinstance(value, Parameter):  # whose are followed apart
            yield "hooks", value._backward_hooks
        if not is_library(kind):
            yield "class", kind
        return
    slots = list(_of_slots(value))
    yield from slots
    if kind not in _WHOLE:
        known = {id(own), id(kind), *(id(part) for _, part in slots)}
        known.update(map(id, own.values() if own else ()))
        yield from ((None, part) for part in gc.get_referents(value) if id(part) not in known)
    if not is_library(kind):
        yield "class", kind


def _attributes_of(value: Any) -> dict[str, Any] | None:
    try:
        own = getattr(value, "__dict__", None)
    except Exception:  # an object without one, whose class has another answer than AttributeError
        return None
    return own if isinstance(own, dict) else None


def _of_mapping(value: Mapping[Any, Any]) -> _Parts:
    yield None, len(value)
    for key, part in value.items():
        yield None, key
        yield None, part


def _of_many(value: Any) -> _Parts:
    yield None, len(value)
    yield from ((None, part) for part in value)


def _of_array(value: Any) -> _Parts:
    if value.dtype.hasobject:
        yield None, np.ndarray.tolist(value)


def _of_generator(value: Any) -> _Parts:
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        frame = getattr(value, name, None)
        if frame is not None:
            yield "place", frame.f_lasti
            yield from frame.f_locals.items()
    for name in ("gi_yieldfrom", "cr_await", "ag_await"):
        yield "what it waits for", getattr(value, name, None)


def _of_iterator(value: Any) -> _Parts:
    """Where one of Python's own iterators stands, and what is left of it."""
    yield "state", repr(value) if type(value).__name__ == "count" else None
    with suppress(TypeError, AttributeError):
        yield from ((None, part) for part in value.__reduce__()[1:])


def _of_file(value: Any) -> _Parts:
    with suppress(OSError, ValueError):  # it cannot tell, or is closed
        yield "place", value.tell()
    if isinstance(value, io.BytesIO | io.StringIO) and not value.closed:
        yield "contents", value.getvalue()


def _of_error(value: BaseException) -> _Parts:
    yield "whether its context is told", value.__suppress_context__


def _of_function(function: types.FunctionType) -> _Parts:
    """Defaults, the closure, and what it names of its module's globals."""
    yield "code", function.__code__
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not filled yet
            yield key, cell.cell_contents
    known, library = function.__globals__, is_library(function)
    names = names_in(function)
    for key in names:
        if key in known and (not library or isinstance(known[key], _DATA)):
            yield key, _named(known[key])
    if not library:
        for module in modules_of(function):
            if is_library_module(module):
                yield from _of_library(module, names)


def names_in(function: types.FunctionType) -> tuple[str, ...]:
    """The globals and attributes that a function names, also in words."""
    return tuple(_names(function.__code__))


def modules_of(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """The modules that a function may reach: by globals, defaults, its closure, and imports."""
    known, loaded, names = function.__globals__, sys.modules, names_in(function)
    above = [str(known.get("__package__") or "")]
    while "." in above[-1]:  # packages of which a relative import may be
        above.append(above[-1].rpartition(".")[0])
    cells = [cell for cell in function.__closure__ or () if cell != types.CellType()]
    held: list[object] = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *(cell.cell_contents for cell in cells),
        *(loaded.get(package) for package in above),
    ]
    for key in names:
        held += known.get(key), loaded.get(key)
        held += (loaded.get(f"{package}.{key}") for package in above)
    yield from (part for part in held if isinstance(part, types.ModuleType))


def _of_library(module: types.ModuleType, names: Sequence[str]) -> _Parts:
    """Plain values that a function may name of a library's module, and of modules in it."""
    waiting, seen = [module], set()
    while waiting:
        module = waiting.pop(0)
        if id(module) in seen:
            continue
        seen.add(id(module))
        held = vars(module)
        for key in names:
            if isinstance(held.get(key), types.ModuleType):
                waiting.append(held[key])
            elif key in held and isinstance(held[key], _ALONE):
                yield f"{module.__name__}.{key}", held[key]


def of_own_module(module: types.ModuleType, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What code that has such names may reach of somebody's own module."""
    for key, part in list(vars(module).items()):
        if key in names or key == "__getattr__":  # which answers for names that are not there
            yield f"{module.__name__}.{key}", part
    if type(module) is not types.ModuleType:
        yield f"the class of {module.__name__}", type(module)


def _named(part: Any) -> Any:
    """What is told of a global: of a module which one it is, since its names are told besides."""
    return ("module", id(part)) if isinstance(part, types.ModuleType) else part


def _of_whole_module(module: types.ModuleType) -> _Parts:
    """All of somebody's own module that an object holds: by which names it is used is not told."""
    if not is_library_module(module):
        for key, part in list(vars(module).items()):
            if not key.startswith("__"):
                yield key, _named(part)


def _names(code: types.CodeType) -> Iterator[str]:
    """The globals and attributes that a function names, also in words, or one that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.replace(".", "").isidentifier():
            yield constant  # of what it may ask a module for, or import


_READERS: Final[tuple[tuple[Any, Callable[[Any], _Parts]], ...]] = (
    (Mapping, _of_mapping),
    (MANY, _of_many),
    (np.ndarray, _of_array),
    (types.FunctionType, _of_function),
    ((Generator, Coroutine, AsyncGenerator), _of_generator),
    (io.IOBase, _of_file),
    (BaseException, _of_error),
)

_WHOLE: Final = frozenset(
    [dict, *MANY[1:], types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType]
)
"""Of which the readers tell all."""


@functools.lru_cache(maxsize=1 << 12)
def _reader_of(kind: type) -> Callable[[Any], _Parts] | None:
    """Told of types, of which there are few; bounded, since a model may make new ones."""
    pythons = kind.__module__ in ("builtins", "itertools") and issubclass(kind, Iterator)
    read = _of_iterator if pythons else None
    return next((read for of, read in _READERS if issubclass(kind, of)), read)


def _of_class(kind: type) -> _Parts:
    """What a class keeps for all its objects: data, methods, other classes."""
    for base in (*inspect.getmro(kind), *inspect.getmro(type(kind))):  # and of its own class
        if not is_library(base):
            for key, part in list(vars(base).items()):
                if key not in _NOT_STATE and not key.startswith("_abc_"):
                    yield key, part


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
    return _is_library(module_of(made).partition(".")[0])


def is_library_module(module: types.ModuleType) -> bool:
    """Whether a module is the standard library's or of one of those known here."""
    return _is_library(module.__name__.partition(".")[0])


def _is_library(name: str) -> bool:
    """Whether a top module is a library's, and not somebody's own of the same name."""
    if name not in _LIBRARIES:
        return False
    module = sys.modules.get(name)
    known = _known.get(name)
    if known is None or known[0] is not module:
        known = _known[name] = module, _is_installed(name, getattr(module, "__file__", None))
    return known[1]


_known: dict[str, tuple[object, bool]] = {}
"""By name of a library: the module that was asked about, and the answer."""


def _is_installed(name: str, file: str | None) -> bool:
    """Whether a file lies where the standard library does, or where packages are installed."""
    if file is None or name == "userdp":  # built in, or not there
        return True
    if name in sys.stdlib_module_names:
        return any(Path(file).is_relative_to(sysconfig.get_path(of)) for of in _STANDARD)
    path = Path(file)
    root = path.parent.parent if path.stem == "__init__" else path.parent
    return root.name in ("site-packages", "dist-packages") or any(root.glob("*.dist-info"))


def module_of(made: type | types.FunctionType) -> str:
    """The name of the module that made a class or a function; empty where none is told.

    A class of classes that is written in C may say that its objects will have the name.
    """
    if isinstance(made, types.FunctionType):  # a wrapper says the name of what it wraps
        name = made.__globals__.get("__name__")
    else:
        name = made.__module__
        if name == "types":  # where `types.new_class` made it, which says no better name
            name = "" if vars(types).get(made.__name__) is not made else name
    return name if isinstance(name, str) else ""
