"""`State`: what a model and its loss hold, read before a pass and put back behind it.

What a pass writes down, the next unit would read, and it would leave the step without noise: a
running mean in a buffer, an attribute or a class, the frequencies of dynamic rotary embeddings, a
cache in a global.

*Read:* buffers, parameters, modules and plain attributes of every module, of the loss, and of what
both hold: attributes, a closure, a bound object, a module such as a teacher, the attributes of
their classes, and the globals that their code names, through lists, dictionaries and objects. *Not
read:* files, weak references, what libraries and C code keep (`functools.lru_cache`), the
parameters of a sharded model.
"""

from __future__ import annotations

import operator
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.gradients.shards import sharded_parts

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_CLOSED: Final = (types.ModuleType, torch.dtype, torch.device, torch.Generator)
_BINDS: Final = (types.MethodType, staticmethod, classmethod, property, partial)
_BOUND: Final = ("__self__", "__func__", "fget", "func", "args", "keywords")
_OF_TORCH: Final = frozenset(vars(nn.Module()))
"""Modes and hooks: the operator's, who changes them between steps (`gradients.models`). And what is
read apart from a module's other attributes."""
_LIBRARIES: Final = {
    *sys.stdlib_module_names,
    "torch",
    "transformers",
    "peft",
    "trl",
    "userdp",
    "numpy",
}
_DEPTH: Final = 6
"""How deep objects are followed into one another."""


class _Holder(NamedTuple):
    """What holds other things: what it holds now, how to put it back, and what it held."""

    now: Callable[[], dict[Any, Any]]
    put: Callable[[dict[Any, Any], dict[Any, Any]], None]
    before: dict[Any, Any]


class State:
    """What ``model`` and ``loss`` hold now.

    Args:
        model: of the passes.
        loss: of the passes.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., object]) -> None:
        self._sharded = bool(sharded_parts(model))
        self._seen: dict[int, object] = {}  # kept: what came in their place had their ids
        self._holders: list[_Holder] = []
        self._written: list[tuple[Tensor, int, Tensor | None]] = []
        self._follow(model, 0)
        self._follow(loss, 0)

    def tensors(self) -> Iterator[Tensor]:
        """All that is held: no row's data, as long as nothing is written to it."""
        for tensor, _, _ in self._written:
            yield tensor

    def changed(self) -> bool:
        """Whether tensors were written to, or anything was put in another's place.

        Plain values may differ: in a pass that matches its certificate none of them was read from
        data (`userdp.gradients.certificate.rows`), so a count of calls is public.
        """
        return any(writes(tensor) != known for tensor, known, _ in self._written) or any(
            _differ(holder.now(), holder.before) for holder in self._holders
        )

    def put_back(self) -> None:
        """Make everything what it was, plain values too.

        Raises:
            UseError: a parameter was written to, of which there is no copy.
        """
        for holder in self._holders:
            now = holder.now()
            if _moved(now, holder.before):
                holder.put(now, holder.before)
        for at, (tensor, known, copy) in enumerate(self._written):
            if writes(tensor) != known:
                if copy is None:
                    raise UseError(
                        "a forward pass wrote to a parameter: it would carry data from one user to "
                        "the next, and out of the step without noise",
                        hint="let only the optimizer change parameters",
                    )
                with torch.no_grad():
                    tensor.copy_(copy)
                self._written[at] = tensor, writes(tensor), copy

    def _hold(
        self,
        now: Callable[[], dict[Any, Any]],
        put: Callable[..., None],
        owner: object,
        depth: int,
    ) -> None:
        """Note what ``owner`` holds, and follow it."""
        holder = _Holder(now, partial(put, owner), now())
        self._holders.append(holder)
        self._follow_all(holder.before.values(), depth)

    def _follow_all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            self._follow(value, depth)

    def _follow(self, value: Any, depth: int) -> None:
        if isinstance(value, (*_PLAIN, *_CLOSED)) or depth > _DEPTH or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        inner = depth + 1
        if isinstance(value, Tensor):
            own = isinstance(value, nn.Parameter)
            self._written.append((value, writes(value), None if own else value.detach().clone()))
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, dict):
            self._hold(partial(dict, value), _put_entries, value, inner)
        elif isinstance(value, list | set | deque):
            self._hold(partial(_numbered, value), _put_parts, value, inner)
        elif isinstance(value, tuple | frozenset):
            self._follow_all(value, inner)
        elif isinstance(value, types.FunctionType):
            self._function(value, inner)
        elif isinstance(value, _BINDS):
            self._follow_all((getattr(value, name, None) for name in _BOUND), inner)
        elif isinstance(value, type):
            for kind in value.__mro__:
                if not _of_library(kind):
                    self._hold(partial(_of_class, kind), _put_entries, kind, inner)
        elif type(value).__module__.startswith("torch.distributed"):
            return  # what shards a model keeps for itself
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._hold(partial(dict, vars(value)), _put_entries, vars(value), inner)
            self._follow(type(value), inner)

    def _module(self, root: nn.Module) -> None:
        for module in root.modules():
            if module is not root and id(module) in self._seen:
                continue
            self._seen[id(module)] = module
            held = vars(module)
            for name in ("_parameters", "_buffers", "_modules"):
                if held[name] and not (self._sharded and name == "_parameters"):
                    self._hold(partial(dict, held[name]), _put_entries, held[name], 1)
            self._hold(partial(_attributes, held), _put_entries, held, 1)
            self._follow(type(module), 1)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        """What a function of the operator's own holds: attributes, closure, defaults, globals."""
        if _of_library(function):
            return
        for cell in function.__closure__ or ():
            self._hold(partial(_contents, cell), _put_entries, cell, depth)
        self._follow_all((vars(function), function.__defaults__, function.__kwdefaults__), depth)
        here = function.__globals__
        names = frozenset(_names(function.__code__)) & here.keys()
        self._hold(partial(_entries, here, names), _put_entries, here, depth)


def writes(tensor: Tensor) -> int:
    """How often the memory of ``tensor`` was written to."""
    return 0 if tensor.is_inference() else tensor._version


def _of_library(code: Any) -> bool:
    return (code.__module__ or "").partition(".")[0] in _LIBRARIES


def _names(code: types.CodeType) -> Iterator[str]:
    """What code names, and functions that are made in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _attributes(held: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in held.items() if name not in _OF_TORCH}


def _of_class(kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, types.FunctionType) or not name.startswith("__")
    }


def _entries(held: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: held[name] for name in names if name in held}


def _numbered(held: Iterable[Any]) -> dict[int, Any]:
    return dict(enumerate(held))


def _contents(cell: types.CellType) -> dict[str, Any]:
    try:
        return {"cell_contents": cell.cell_contents}
    except ValueError:  # not filled yet
        return {}


def _put_entries(held: Any, now: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Of a dictionary; or the attributes of a class, or the contents of a cell."""
    entries = isinstance(held, dict)
    put, drop = (operator.setitem, operator.delitem) if entries else (setattr, delattr)
    for key in now.keys() - before.keys():
        drop(held, key)
    for key, value in before.items():
        put(held, key, value)


def _put_parts(held: Any, now: dict[int, Any], before: dict[int, Any]) -> None:
    held.clear()
    (held.update if isinstance(held, set) else held.extend)(before.values())


def _moved(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether anything came, went or is another thing."""
    same = now.keys() == before.keys() and all(map(operator.is_, now.values(), before.values()))
    return not same


def _differ(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether something that is no plain value came, went or is another one."""
    return _moved(now, before) and any(
        now.get(key) is not before.get(key)
        and not (isinstance(now.get(key), _PLAIN) and isinstance(before.get(key), _PLAIN))
        for key in now.keys() | before.keys()
    )
