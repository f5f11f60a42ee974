"""What a model and its loss hold must not change while gradients are computed.

What a pass writes down, the next unit reads: its gradient is then a function of others' data, and
the clip norm bounds nothing. And what was written leaves the step beside the sum, without clipping
and without noise: a parameter that a forward pass renormalises, a running mean, the largest
activation so far. So everything that modules, the hooks that somebody registered with them
(`userdp.gradients.hooks`) and the loss hold is read before and after: tensors by their identity and
count of writes, small ones on the host by their numbers too, parameters among them, small arrays
and plain numbers by value, whatever else by what it holds in turn (`userdp.gradients.parts`):
somebody's own modules, however reached, by all the names that any of this code has: a helper
may be handed a module, and a function return one.
A module that a hook or the loss holds, a criterion or a teacher, is read as the model's own modules
are; so is a loss that is a module; and of a scripted module the attributes beyond Python.

*What is not seen:* the parameters of a sharded model; writes past a tensor's count of them
(`Tensor.data`, its NumPy view) where it is larger than `userdp.gradients.notes.FEW_BYTES` (of
smaller ones on an accelerator what is put back before the step ends); state in files, in most
settings of libraries, behind weak references, in caches of functions and C code; what lies deeper
than `_DEPTH` objects in one another; globals by names that are computed; hooks of
torch.distributed. Where it changes the answer to made-up rows it is refused for that
(`userdp.gradients.coupling`). The batched engines do not prove a pass in which a tensor's memory is
handed out (`userdp.gradients.engines.rows`).
"""

from __future__ import annotations

import contextvars
import functools
import os
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients.ambient import precisions_of_products
from userdp.gradients.hooks import hooks_of
from userdp.gradients.notes import SIMPLE, Note, bytes_of, is_small, note_of, plain_parts
from userdp.gradients.operations import own_operations
from userdp.gradients.parts import (
    is_library,
    is_library_module,
    module_of,
    modules_of,
    names_in,
    of_own_module,
    parts_of,
)
from userdp.gradients.shards import sharded_parts
from userdp.gradients.transfers import told

_DEPTH: Final = 16
"""How deep containers and objects are followed."""

_SHARDING: Final = "torch.distributed."
"""Where the types live in which FSDP2 notes, among other things, what is gathered just now."""
_TENSORS: Final = {"_parameters": "parameter ", "_buffers": "buffer "}
_INTERNAL: Final = (frozenset(vars(nn.Module())) - {"training", *_TENSORS, "_modules"}) | {
    "_flat_weights",
    "_flat_weight_refs",
}
"""What torch keeps in modules: hooks, which are followed by their own names; and a recurrent
layer's list of its parameters, likewise."""

IN_MODULES: Final = _INTERNAL | {*_TENSORS, "_modules"}
"""All that is torch's own among the attributes of a module, but for its mode."""


class HeldState:
    """What ``model``, its hooks and ``loss`` hold now, to be compared with what they hold later."""

    def __init__(self, model: nn.Module, loss: Callable[..., object]) -> None:
        self._model, self._loss = model, loss
        self._before = _held(model, loss)
        self._far = _joined(self._before.far)

    def require_unchanged(self) -> None:
        """Refuse what was computed since if anything that is held changed.

        Guarantee: without an error, what the next pass reads from parameters, buffers, attributes,
        and variables of hooks and the loss is what every pass since then read.

        Raises:
            UseError: names the first thing that changed, in words of the code alone: a key of a
                dictionary may be somebody's text, and a place in a list a count.
        """
        before, after = self._before, _held(self._model, self._loss)
        if before.values == after.values:
            return
        raise _changed(before.first_other(after))

    def far_hold(self) -> Callable[[], bool]:
        """What tells whether small tensors on an accelerator hold what they held, as they are now.

        It is asked once a step, and answered when the device has come so far.
        """
        now = _joined(self._before.far)
        same = [told((now[device] == before).all()) for device, before in self._far.items()]
        return lambda: all(bool(read()) for read in same)

    def require_far(self, hold: Callable[[], bool]) -> None:
        """`require_unchanged`, of what `far_hold` tells."""
        if not hold():
            raise _changed("a small tensor that the model, a hook or the loss holds")


def _changed(name: str) -> UseError:
    return UseError(
        f"{name} changed during the forward pass: it would carry data from one user to the "
        "next, and out of the step without noise",
        hint="keep no state in the model, its hooks or the loss while it trains: put that "
        "module in evaluation mode, or replace it by one without state",
    )


def _joined(tensors: Iterable[Tensor]) -> dict[torch.device, Tensor]:
    """The bytes of all tensors on each device."""
    by_device: dict[torch.device, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_device[tensor.device].append(bytes_of(tensor))
    return {device: torch.cat(parts) for device, parts in by_device.items()}


def _held(model: nn.Module, loss: Callable[..., object]) -> _Reading:
    """What is held; the parts of a container under the container's own name."""
    reading = _Reading()
    reading.modules(model, ())
    for hook in hooks_of(model):
        reading.follow((f"what a hook of {hook.where} holds ({hook.number})",), hook.function, 0)
    reading.follow(("what the loss holds",), loss, 0)
    for variable, value in contextvars.copy_context().items():
        # No deeper: what is in there may be another library's, which works on meanwhile.
        depth = _DEPTH if is_library(type(value)) else _DEPTH - 3
        reading.follow((f"context variable {variable.name}",), value, depth)
    for name, function in own_operations():
        reading.follow((f"operation {name}",), function, 0)
    reading.own_modules()
    reading.note(("the environment",), tuple(os.environ.items()))
    reading.note(("a setting of torch",), _settings())
    return reading


def _settings() -> tuple[object, ...]:
    """What anybody may ask of torch as a whole, and most easily change."""
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        *precisions_of_products(),
    )


_Name: TypeAlias = tuple[str, ...]
"""In pieces: hardly any is ever told."""


class _Reading:
    """One look at all that is held.

    Attributes:
        values: what is noted of each value, in an order that the code alone decides.
        far: small tensors that lie on an accelerator, of whose numbers nothing is noted.
    """

    def __init__(self) -> None:
        self.values: list[object] = []
        self.far: list[Tensor] = []
        self._names: list[_Name] = []
        self._followed: dict[int, int] = {}  # how deep each was when its parts were noted
        self._order: dict[int, int] = {}  # of containers, as they were met
        self._kept: list[object] = []  # what comes in their place has another id while they live
        self._said: set[str] = set()  # by all of somebody's own code
        self._own: dict[int, types.ModuleType] = {}

    def first_other(self, later: _Reading) -> str:
        """The name of the first value that is another one in ``later``."""
        pairs = zip(self.values, later.values, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is not None:
            return "".join(self._names[at])
        shorter = min(len(self.values), len(later.values))
        return "".join((self._names[shorter:] or later._names[shorter:])[0])

    def modules(self, root: nn.Module, name: _Name) -> None:
        """Note parameters, buffers and attributes of a module and of those in it."""
        # The parameters of a sharded model are other tensors while a pass has gathered them.
        sharded = bool(sharded_parts(root))
        for inner, module in root.named_modules():
            if id(module) in self._followed:
                continue
            self._followed[id(module)] = 0
            where = f"{inner}." if inner else ""
            if name:
                where = f"{''.join(name)}.{where}"
            held = vars(module)
            saved = held["_non_persistent_buffers_set"]
            if saved:
                self.note(("which buffers are saved of ", where), frozenset(saved))
            for key, value in [item for item in held.items() if item[0] not in _INTERNAL]:
                kind: type = type(value)
                if kind in SIMPLE:  # most
                    self.note(("attribute ", where, key), (kind, value))
                elif key == "_modules":
                    if value:  # one may be held twice, and a model may tell by which it is
                        ids = tuple(map(id, value.values()))
                        self.note(("the modules of ", where), (tuple(value), ids))
                elif key in _TENSORS:
                    for own, tensor in value.items():
                        if not (sharded and key == "_parameters"):
                            self.follow((_TENSORS[key], where, own), tensor, 1)
                else:
                    self.follow(("attribute ", where, key), value, 1)
            if isinstance(module, torch.jit.ScriptModule):
                for key, value in _scripted(module):
                    self.follow(("attribute ", where, key), value, 1)
            self.follow(("class ", type(module).__name__), type(module), 1)

    def note(self, name: _Name, value: object) -> None:
        """Note ``value`` under ``name`` as it is."""
        self._names.append(name)
        self.values.append(value)

    def follow(self, name: _Name, value: Any, depth: int) -> None:
        """Note ``value`` under ``name``, and what it holds."""
        kind: type = type(value)
        note = _note_of(kind)
        self._kept.append(value)
        if note.taken is None:  # told by its parts, and by which of those that were met it is
            met = self._order.setdefault(id(value), len(self._order))
            parts = plain_parts(value)
            self.note(name, (kind, met, parts))
            if parts is not None:
                return
        else:
            self.note(name, note.taken(value))
        if isinstance(value, Tensor) and _is_far(value) and is_small(value):
            self.far.append(value)
        deepest = _DEPTH + 1 if note.taken is None else _DEPTH
        if note.ends or self._followed.get(id(value), deepest) <= depth:
            return
        if isinstance(value, nn.Module):
            self.modules(value, name)
            return
        self._followed[id(value)] = depth
        if isinstance(value, types.FunctionType) and not is_library(value):
            self._said.update(names_in(value))
            self._meet(modules_of(value))
        elif isinstance(value, types.ModuleType):
            self._meet((value, *_inner(value)))
        for key, part in parts_of(value):
            self.follow(name if key is None else (*name, ".", key), part, depth + 1)

    def _meet(self, modules: Iterable[types.ModuleType]) -> None:
        self._own.update((id(one), one) for one in modules if not is_library_module(one))

    def own_modules(self) -> None:
        """Note what any code that was followed may reach of the modules that it may reach.

        What is followed then may be code that has other names, and reaches others.
        """
        before = -1, -1
        while before != (len(self._said), len(self._own)):
            before = len(self._said), len(self._own)
            for module in list(self._own.values()):
                for name, part in of_own_module(module, self._said):
                    if isinstance(part, types.ModuleType):
                        self.note((name,), id(part))
                        self._meet([part])
                    else:
                        self.follow((name,), part, 1)


def _inner(module: types.ModuleType) -> Iterator[types.ModuleType]:
    """The modules that somebody's own module holds, as a package does."""
    held = () if is_library_module(module) else list(vars(module).values())
    yield from (part for part in held if isinstance(part, types.ModuleType))


def _is_far(value: Tensor) -> bool:
    return value.device.type not in ("cpu", "meta")


def _scripted(module: Any) -> Iterator[tuple[str, object]]:
    """The attributes of a scripted module, which lie beyond Python."""
    for key in module._concrete_type.get_attributes():
        yield key, module._c.getattr(key)


@functools.lru_cache(maxsize=1 << 12)
def _note_of(kind: type) -> Note:
    note = note_of(kind)
    return note._replace(ends=True) if module_of(kind).startswith(_SHARDING) else note
