"""What a model and its loss hold must not change while gradients are computed.

What a pass writes down, the next unit reads: its gradient is then a function of others' data, and
the clip norm bounds nothing. And what was written leaves the step beside the sum, without clipping
and without noise: a parameter that a forward pass renormalises, a running mean, the largest
activation so far. So everything that modules, the hooks that somebody registered with them
(`userdp.gradients.hooks`) and the loss hold is read before and after: tensors by their identity and
count of writes, small arrays and plain numbers by value, whatever else by what it holds in turn.

*What is not seen:* the parameters of a sharded model; writes past a tensor's count of them
(`Tensor.data`, its NumPy view); state in files, behind weak references and C code, and in objects
that are global to the functions that a forward pass calls; what a hook or a loss keeps in a module
that is no part of the model; hooks of torch.distributed. The batched engines do not prove a pass
in which a tensor's memory is handed out (`userdp.gradients.engines.rows`).
"""

from __future__ import annotations

import logging
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients.hooks import hooks_of
from userdp.gradients.shards import sharded_parts

_Held: TypeAlias = dict[str, object]

_DEPTH = 4
"""How deep containers and objects are followed."""

_MOST_BYTES = 1 << 20
"""Larger arrays are told by their identity alone."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device)
_MANY = (Mapping, list, tuple, set, frozenset)
_OPAQUE = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    nn.Module,
    torch.Generator,
    logging.Logger,  # it remembers which levels are asked for
)
_INTERNAL = (frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers"}) | {
    "_flat_weights",
    "_flat_weight_refs",
}
"""What torch keeps in modules: hooks and submodules, which are followed by their own names; and a
recurrent layer's list of its parameters, likewise."""


class HeldState:
    """What ``model``, its hooks and ``loss`` hold now, to be compared with what they hold later."""

    def __init__(self, model: nn.Module, loss: Callable[..., object]) -> None:
        self._model, self._loss = model, loss
        self._before = _held(model, loss)

    def require_unchanged(self) -> None:
        """Refuse what was computed since if anything that is held changed.

        Guarantee: without an error, what the next pass reads from parameters, buffers, attributes,
        and variables of hooks and the loss is what every pass since then read.

        Raises:
            UseError: names the first thing that changed.
        """
        before, after = self._before, _held(self._model, self._loss)
        if before == after:
            return
        names = before | after
        name = next(k for k in names if k not in before or k not in after or before[k] != after[k])
        raise UseError(
            f"{name} changed during the forward pass: it would carry data from one user to the "
            "next, and out of the step without noise",
            hint="keep no state in the model, its hooks or the loss while it trains: put that "
            "module in evaluation mode, or replace it by one without state",
        )


def _held(model: nn.Module, loss: Callable[..., object]) -> _Held:
    held: _Held = {}
    seen: set[int] = set()
    # The parameters of a sharded model are other tensors while a pass has gathered them.
    sharded = bool(sharded_parts(model))
    for name, module in model.named_modules():
        prefix = f"{name}." if name else ""
        for key, value in vars(module).items():
            if key == "_parameters" or key == "_buffers":
                kind = "parameter" if key == "_parameters" else "buffer"
                for own, tensor in value.items():
                    if tensor is not None and not (sharded and kind == "parameter"):
                        held[f"{kind} {prefix}{own}"] = (id(tensor), tensor._version)
            elif key not in _INTERNAL:
                _follow(f"attribute {prefix}{key}", value, held, seen, 1)
    for hook in hooks_of(model):
        _follow(f"what a hook of {hook.where} holds ({hook.number})", hook.function, held, seen, 0)
    _follow("what the loss holds", loss, held, seen, 0)
    return held


def _follow(name: str, value: Any, held: _Held, seen: set[int], depth: int) -> None:
    """Note ``value`` under ``name``, and what it holds."""
    if isinstance(value, _PLAIN):
        held[name] = repr(value) if isinstance(value, float) else value  # NaN is not itself
        return
    if isinstance(value, Tensor):
        held[name] = (id(value), value._version)
        return
    if isinstance(value, np.ndarray | np.generic):
        held[name] = value.tobytes() if value.nbytes <= _MOST_BYTES else id(value)
        return
    if isinstance(value, weakref.ref):  # whatever holds what it points to is followed there
        held[name] = type(value)
        return
    held[name] = type(value) if isinstance(value, _MANY) else (type(value), id(value))
    if isinstance(value, _OPAQUE) or depth == _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    for key, part in _parts(value):
        _follow(f"{name}.{key}", part, held, seen, depth + 1)


def _parts(value: Any) -> Iterator[tuple[object, Any]]:
    """What a value holds, each part with a name."""
    if isinstance(value, Mapping):
        yield "length", len(value)
        yield from ((repr(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield "length", len(value)
        yield from enumerate(value)
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield "function", value.__func__
    elif isinstance(value, partial):
        yield "function", value.func
        yield "arguments", value.args
        yield "keywords", value.keywords
        yield from vars(value).items()
    elif isinstance(value, types.FunctionType):
        yield from vars(value).items()
        yield "defaults", value.__defaults__
        yield "keyword defaults", value.__kwdefaults__
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # not filled yet
                yield key, cell.cell_contents
        known = value.__globals__
        for key in value.__code__.co_names:
            if key in known and isinstance(known[key], (*_PLAIN, *_MANY, Tensor, np.ndarray)):
                yield key, known[key]
    else:
        yield from getattr(value, "__dict__", {}).items()
        for key in getattr(type(value), "__slots__", ()):
            if hasattr(value, key):
                yield key, getattr(value, key)
        call = getattr(type(value), "__call__", None)  # noqa: B004  its code, not whether it has one
        if isinstance(call, types.FunctionType):
            yield "__call__", call
