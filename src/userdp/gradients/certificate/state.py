"""`State`: what a model and its loss hold, read before a pass and put back behind it.

What a pass writes down, the next unit would read, and it would leave the step without noise: a
running mean in a buffer or an attribute, the frequencies of dynamic rotary embeddings, a cache.

*Read:* buffers, parameters, modules and plain attributes of every module, of the loss, and of what
the loss holds (its attributes, its closure, a bound object, a module such as a teacher, and the
globals that it names), through lists, dictionaries and objects. *Not read:* files, weak references,
what C code keeps, the parameters of a sharded model.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients.shards import sharded_parts

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
_TENSORS: Final = ("_parameters", "_buffers")
_OF_TORCH: Final = frozenset(vars(nn.Module())) - {*_TENSORS, "_modules"}
"""Modes and hooks: the operator's, who changes them between steps (`gradients.models`)."""
_CLOSED: Final = (type, types.ModuleType, torch.dtype, torch.device, torch.Generator)
_DEPTH: Final = 6
"""How deep objects are followed into one another."""


class State:
    """What ``model`` and ``loss`` hold now.

    Args:
        model: of the passes.
        loss: of the passes.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., object]) -> None:
        self._sharded = bool(sharded_parts(model))
        self._seen: dict[int, object] = {}  # kept: what came in their place had their ids
        self._mappings: list[tuple[MutableMapping[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[Any, list[Any]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
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
        return (
            any(_version(tensor) != version for tensor, version, _ in self._written)
            or any(_differ(mapping, before) for mapping, before in self._mappings)
            or any(_moved(list(held), before) for held, before in self._lists)
            or any(_exchanged(_contents(cell), value) for cell, value in self._cells)
        )

    def put_back(self) -> None:
        """Make everything what it was, plain values too.

        Raises:
            UseError: a parameter was written to, of which there is no copy.
        """
        for mapping, before in self._mappings:
            if len(mapping) != len(before) or any(
                mapping.get(key, self) is not value for key, value in before.items()
            ):
                for key in set(mapping) - set(before):
                    del mapping[key]
                mapping.update(before)
        for held, parts in self._lists:
            if _moved(list(held), parts):
                held.clear()
                (held.update if isinstance(held, set) else held.extend)(parts)
        for cell, value in self._cells:
            cell.cell_contents = value
        for at, (tensor, version, copy) in enumerate(self._written):
            if _version(tensor) != version:
                if copy is None:
                    raise UseError(
                        "a forward pass wrote to a parameter: it would carry data from one user to "
                        "the next, and out of the step without noise",
                        hint="let only the optimizer change parameters",
                    )
                with torch.no_grad():
                    tensor.copy_(copy)
                self._written[at] = tensor, _version(tensor), copy

    def _module(self, root: nn.Module) -> None:
        for module in root.modules():
            if module is root or self._first(module):
                held = vars(module)
                for name in ("_parameters", "_buffers", "_modules"):
                    if held[name] and not (self._sharded and name == "_parameters"):
                        self._mapping(held[name], 1)
                own = {key: value for key, value in held.items() if key not in _NO_ATTRIBUTES}
                self._mappings.append((_Attributes(held), own))
                for value in own.values():
                    self._follow(value, 1)

    def _first(self, value: object) -> bool:
        fresh = id(value) not in self._seen
        self._seen[id(value)] = value
        return fresh

    def _mapping(self, held: MutableMapping[Any, Any], depth: int) -> None:
        self._mappings.append((held, dict(held)))
        for value in held.values():
            self._follow(value, depth)

    def _follow(self, value: Any, depth: int) -> None:
        if isinstance(value, (*_PLAIN, *_CLOSED)) or depth > _DEPTH or not self._first(value):
            return
        if isinstance(value, Tensor):
            own = isinstance(value, nn.Parameter)
            self._written.append((value, _version(value), None if own else value.detach().clone()))
        elif isinstance(value, nn.Module):
            self._module(value)
        elif isinstance(value, dict):
            self._mapping(value, depth + 1)
        elif isinstance(value, list | set | deque):
            self._lists.append((value, list(value)))
            for part in value:
                self._follow(part, depth + 1)
        elif isinstance(value, tuple | frozenset):
            for part in value:
                self._follow(part, depth + 1)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth + 1)
        elif isinstance(value, types.MethodType):
            self._follow(value.__self__, depth + 1)
            self._follow(value.__func__, depth + 1)
        elif isinstance(value, functools.partial):
            self._follow((value.func, value.args, value.keywords), depth + 1)
        elif type(value).__module__.startswith("torch.distributed"):
            return  # what shards a model keeps for itself
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._mapping(vars(value), depth + 1)
            if callable(value):  # a loss that is an object: what its code names
                self._follow(type(value).__call__, depth + 1)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        """What a function of the operator's own holds: attributes, closure, defaults, globals."""
        if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
            return
        for cell in function.__closure__ or ():
            value = _contents(cell)
            self._cells.append((cell, value))
            self._follow(value, depth)
        self._mapping(vars(function), depth)
        self._follow(function.__defaults__, depth)
        names = [name for name in function.__code__.co_names if name in function.__globals__]
        named = {name: function.__globals__[name] for name in names}
        if named:
            self._mappings.append((_Attributes(function.__globals__, frozenset(named)), named))
        for value in named.values():
            self._follow(value, depth)


_NO_ATTRIBUTES: Final = _OF_TORCH | {*_TENSORS, "_modules"}
_LIBRARIES: Final = ("torch", "transformers", "peft", "trl", "userdp", "numpy")


class _Attributes(MutableMapping[str, Any]):
    """The attributes of a module without torch's own; or some names of a dictionary."""

    def __init__(self, held: dict[str, Any], only: frozenset[str] | None = None) -> None:
        self._held, self._only = held, only

    def _mine(self, key: str) -> bool:
        return key not in _NO_ATTRIBUTES if self._only is None else key in self._only

    def __getitem__(self, key: str) -> Any:
        return self._held[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._held[key] = value

    def __delitem__(self, key: str) -> None:
        del self._held[key]

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._held if self._mine(key))

    def __len__(self) -> int:
        return sum(map(self._mine, self._held))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _holds(value: object) -> bool:
    return not isinstance(value, _PLAIN)


def _exchanged(now: object, before: object) -> bool:
    """Whether another value stands there, of which at least one is no plain one."""
    return now is not before and (_holds(now) or _holds(before))


def _differ(mapping: MutableMapping[Any, Any], before: dict[Any, Any]) -> bool:
    """Whether something that is no plain value came, went or is another one."""
    for key, value in mapping.items():
        if before.get(key, mapping) is not value and (_holds(value) or _holds(before.get(key))):
            return True
    return any(_holds(value) and key not in mapping for key, value in before.items())


def _moved(now: list[Any], before: list[Any]) -> bool:
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))
