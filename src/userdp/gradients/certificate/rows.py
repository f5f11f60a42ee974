r"""`Rows`: which row of the pass each number belongs to, followed from operation to operation.

The batched engines give each place of a layer's input to the row that owns it. A shape cannot tell
who that is: the tokens that a mask selects, or those that a router sends to an expert, may have any
count, that of the whole pass among them. So the owner is derived from the code that made the
tensor.

A tensor is **by rows** at ``Place(dim, inner)``: index i of dimension ``dim``, whose size is rows x
``inner``, belongs to row i // ``inner``. It is **constant** where no row's data reached it
(parameters, buffers, positions). Everything else is unknown.

*What is proved.* A rule (`certificate.operations`) gives a result a place only if, for every value
of the arguments, an element of row r is a function of constants and of elements of row r. By
induction over the operations that ran, a loss that is by rows at ``Place(0)`` splits the whole
computation into one part for each row, and these share nothing but constants. So the derivative of
row r's loss by another row's element is zero, and a layer's gradient, cut at the places of its
input, is each row's own.

An operation without a rule makes its result unknown, unless all that it was given is constant and
it drew nothing; and the first function whose result is of unknown place ends the proof: all that a
missing rule can do is to let the reference engine compute. A write in place is seen by the version
that a tensor shares with its views. What Python reads from data ends the proof too: a number, a
length that hangs on data, the condition of a branch, since a row's loss is then a function of
whatever chose the branch. So does a pass in which a tensor's memory is handed out, that writes to
a tensor of unknown origin, that calls code under `torch.jit` or hands a function to torch, that
draws from a generator of its own, or whose gradients go through code of somebody's own
(`torch.autograd.Function`, backward hooks).

*Assumed:* what `certificate.operations` assumes; checkpointed code computes the same when it runs
again (torch compares the shapes of what it saves).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from userdp.gradients.certificate.calls import ASKS, HANDS_OUT
from userdp.gradients.certificate.operations import FUNCTIONS, place_after, steps
from userdp.gradients.certificate.places import CONSTANT, FIRST, Call, Place, same_memory, whole
from userdp.gradients.certificate.state import writes
from userdp.gradients.modes import unwatched

_KEY = "_userdp_place"


class _Mark(NamedTuple):
    """A place, for the pass of ``owner`` and for as long as nothing was written to the tensor."""

    place: Place | None
    owner: Rows
    version: int
    why: str = ""  # the place is unknown, where it is


class Rows:
    """The places of one pass.

    Args:
        count: rows in the pass.
        held: what modules and the loss hold: constants, for as long as nothing is written to them.

    Attributes:
        count: as given.
        drew: whether coins were thrown by a function that has a rule.
        strangers: tensors that no call of this pass made and nothing that is ``held`` holds, such
            as a mask in a cache: constants, if a second pass is given the very same ones.
        lost: by what the proof ended, in words; None as long as it stands.
        inside: the modules that compute, the innermost last.
        kinds: the class of module in which places were first lost, by the reason.
    """

    def __init__(self, count: int, held: Iterable[Tensor] = ()) -> None:
        self.count = count
        self.drew = False
        self.strangers: list[Tensor] = []
        self.lost: str | None = None
        self.inside: list[nn.Module] = []
        self.kinds: dict[str, str] = {}
        self._seed = torch.initial_seed()
        self._paused = self._proved = False
        self._held = {id(tensor): (tensor, writes(tensor)) for tensor in held}
        self._written: set[int] = set()  # of what is held, by a call that was seen
        self._gathered: dict[int, Tensor] = {}
        self._given: list[Tensor] = []
        self._made: list[tuple[Tensor, Place | None, str]] = []

    @property
    def aside(self) -> bool:
        """Whether FSDP2 is at work, whose calls are not the model's."""
        return self._paused or self._gathers()

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``; None where that is unknown."""
        mark = self._mark_of(tensor)
        if mark is not None and mark.version == writes(tensor):
            return mark.place
        held = self._held.get(id(tensor))
        if held is not None:
            unchanged = held[1] == writes(tensor) and id(tensor) not in self._written
            return CONSTANT if unchanged else None
        # Being a parameter is no answer: anybody may make one, of somebody's data.
        return CONSTANT if id(tensor) in self._gathered else None

    def _mark_of(self, tensor: Tensor) -> _Mark | None:
        mark: _Mark | None = tensor.__dict__.get(_KEY)
        return mark if mark is not None and mark.owner is self else None

    def mark(self, tensor: Tensor, place: Place | None, why: str = "") -> Tensor:
        """Note where rows lie in ``tensor``; a place that its shape contradicts is dropped."""
        if place is None:
            self._lose(why)
        if place is not None and place.dim is not None:
            size = tensor.shape[place.dim] if 0 <= place.dim < tensor.dim() else 0
            if place.counts:  # one index is everywhere: it counts nothing
                place = place if size > 1 else CONSTANT
            elif size != place.outer * self.count * place.inner:
                place = None
        if id(tensor) in self._held or isinstance(tensor, nn.Parameter):
            if place is None or not place.constant:
                self._written.add(id(tensor))  # its version may have been told to stay
        else:
            tensor.__dict__[_KEY] = _Mark(place, self, writes(tensor), why)
        return tensor

    def prove(self, losses: Tensor) -> bool:
        """Whether this pass kept its rows apart, from its tokens to its losses, (rows,)."""
        self._proved = True
        with unwatched():  # what is asked here, the model did not ask
            return self.count == 1 or (
                self.lost is None and self.place_of(losses) == FIRST and not _own_backward(losses)
            )

    def kept_apart(self) -> bool:
        """Whether nothing was read of data by what ran since `prove`: checkpointed code, again."""
        return self.count == 1 or self.lost is None

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call ``function``, and note where rows lie in what it returns."""
        if self.count == 1 or function in ASKS or self.aside:
            return function(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
        if self.lost is None:
            self.strangers += [one for one in given if self._origin_unknown(one)]
        if function in HANDS_OUT or any(isinstance(v, _OWN) for v in (*args, *kwargs.values())):
            self._end(f"Python is handed somebody's numbers by {_named(function)}")
        rule = FUNCTIONS.get(function)
        if rule is not None:
            place = rule(self, *args, **kwargs)
            result = function(*args, **kwargs)
            self.mark(result, place, _NOT_FOLLOWED + _named(function))
        else:
            self._given = given
            with _Following(self, _named(function)):
                result = function(*args, **kwargs)
            self._settle()
        self._judge(function, given, result)
        return result

    def follow(
        self, function: str, operation: Any, args: Iterable[object], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run one operation of torch's dispatcher, on behalf of ``function``."""
        self._settle()
        call = Call(self.place_of, operation, args, kwargs)
        for tensor in call.written:
            if self._origin_unknown(tensor):  # it may share a constant's memory
                self._end(f"{function} writes to a tensor of unknown origin")
            if tensor.is_inference():  # torch counts no writes to it
                self._end(f"{function} writes to a tensor of torch.inference_mode")
        shared = [(one, self.place_of(one)) for one in self._sharing(call.written)]
        result = operation(*args, **kwargs)
        parts = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not call.constants() and _HANGS_ON_DATA & set(call.tags) and call.name != "index":
            self._end(_READS + function)
        place, why = None, _NOT_FOLLOWED + function
        first = parts[0] if parts else None
        if first is not None:
            call.result = first
            place = place_after(call)
            if call.name == "lift_fresh" and self._origin_unknown(first):
                place = CONSTANT  # torch made it of Python's numbers
        self._made += [(tensor, None, why) for tensor in call.written if tensor is not first]
        for part in parts:
            stepped = place is not None and steps(call, part)
            told = f"{_TIPPED} ({function})" if stepped else self._why(call, why)
            self._made.append((part, None if stepped else place, told))
        if first is not None and len(call.written) == 1 and call.written[0] is first:
            had, now = call.place(first), self._made[-1][1]
            after = [whole(base, before, first, had, now) for base, before in shared]
            self._made += [(one, place, why) for (one, _), place in zip(shared, after, strict=True)]
        return result

    def _sharing(self, written: list[Tensor]) -> Iterator[Tensor]:
        """What shares its memory with a tensor that is written to: its base, and what is given.

        Of ``x[0, 1:] = y`` that is x, where the operation is told of a view. Whatever else shares
        the memory is unknown from here on.
        """
        for base in (view._base for view in written if view._base is not None):
            yield base
            yield from (
                one
                for one in self._given
                if one._base is base and all(one is not view for view in written)
            )

    def _why(self, call: Call, why: str) -> str:
        """Why the result is of unknown place: for the reason of an argument, if one is."""
        marks = [self._mark_of(t) for t in call.tensors if self.place_of(t) is None]
        return next((mark.why for mark in marks if mark is not None and mark.why), why)

    def _settle(self) -> None:
        """Mark what the last operation made: only now have its versions moved."""
        for tensor, place, why in self._made:
            self.mark(tensor, place, why)
        self._made.clear()

    def _origin_unknown(self, tensor: Tensor) -> bool:
        return self._mark_of(tensor) is None and self.place_of(tensor) is None

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether no row's data reached ``tensor``."""
        place = self.place_of(tensor)
        return place is not None and place.constant

    def throw(self) -> None:
        """Note that coins are thrown, each a row's own."""
        self.drew = True
        if torch.initial_seed() != self._seed:
            self._end("a generator was seeded in the pass, so that masks are known")

    def _lose(self, why: str) -> None:
        self.kinds.setdefault(why, type(self.inside[-1]).__name__ if self.inside else "the loss")

    def _end(self, why: str) -> None:
        self._lose(why)
        self.lost = self.lost or why

    def _judge(self, function: Callable[..., Any], given: list[Tensor], result: object) -> None:
        """End the proof where a result is unknown, or tells Python of somebody's numbers.

        Of several parts some may be unknown, such as the places at which a largest number stands,
        until they are used. Whatever is neither a tensor nor nothing tells something of what it was
        made of, unless all of that is constant; what is no plain value either (an array, a node of
        the graph) may be written to.
        """
        leaves = tree_leaves(result)
        parts = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._end_if_unknown(parts)
        others = [leaf for leaf in leaves if not isinstance(leaf, Tensor | None)]
        told = bool(others) or (not parts and result is not None)
        handed = not all(isinstance(other, _PLAIN) for other in others)
        if handed or (told and not all(map(self.is_constant, given))):
            self._end(_READS + _named(function))

    def _end_if_unknown(self, parts: list[Tensor]) -> None:
        """Note tensors of unknown place: what is done with them is not followed any further."""
        if parts and all(self.place_of(part) is None for part in parts):
            mark = self._mark_of(parts[0])
            self._end((mark.why if mark else "") or f"{_NOT_FOLLOWED}a tensor from elsewhere")

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Within a pass of ``model``: note code under `torch.jit`, and see through shards.

        Places survive what FSDP2 does before and after its layers. It hands a layer its arguments
        through a function of its own, an identity that returns other tensors over the same memory;
        and it looks at shapes of the parameters that it gathers, which is nobody's data.
        """
        own = [kind.__call__ for kind in _SCRIPTED]
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        sharded = [m for m in model.modules() if fsdp and isinstance(m, fsdp.FSDPModule)]
        handles = [handle for module in sharded for handle in self._hooks(module)]
        try:
            for kind, call in zip(_SCRIPTED, own, strict=True):
                kind.__call__ = self._noted(call)
            yield
        finally:
            for kind, call in zip(_SCRIPTED, own, strict=True):
                kind.__call__ = call
            for handle in handles:
                handle.remove()

    def _noted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._end("code under torch.jit is not followed")
            return call(*args, **kwargs)

        return noted

    def _gathers(self) -> bool:
        """Whether FSDP2 is at work in a backward pass, and not a layer that is computed again.

        Only checkpointing has hooks on what a graph saves while a backward pass runs.
        """
        saves = torch._C._autograd._top_saved_tensors_default_hooks
        return self._proved and bool(self._gathered) and saves(True) is None

    def _hooks(self, module: nn.Module) -> list[RemovableHandle]:
        given: list[Tensor] = []

        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            given[:] = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self._paused = True

        def end(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._paused = False
            got = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            with unwatched():
                for old, new in zip(given, got, strict=True):
                    if new is not old and same_memory(old, new):
                        self.mark(new, self.place_of(old))
            given.clear()
            self._gathered.update((id(p), p) for p in module.parameters())  # which are whole now

        def pause(module: nn.Module, args: Any, result: Any) -> None:
            self._paused = not self._paused

        return [
            module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True),
            module.register_forward_pre_hook(end, with_kwargs=True),
            module.register_forward_hook(pause, prepend=True),
            module.register_forward_hook(pause),
        ]


class _Following(TorchDispatchMode):
    """Sends the operations that ``function`` comes down to through `Rows.follow`."""

    def __init__(self, rows: Rows, function: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self._rows, self._function = rows, function

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._rows.follow(self._function, func, args, kwargs or {})


_NOT_FOLLOWED = "rows are not followed through "
_READS = "Python reads somebody's numbers by "
_TIPPED = "its choice could be tipped by the rounding of a batch"

_HANGS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device)

_SCRIPTED: tuple[Any, ...] = (torch._C.ScriptFunction, torch._C.ScriptMethod)
_OWN = (types.FunctionType, types.MethodType, torch.Generator)
"""Functions that torch would call unseen, and generators that other units draw from too."""

_TRUSTED = (
    "userdp.gradients.engines.",
    "userdp.gradients.losses",
    "torch.distributed.fsdp.",
    "transformers.models.bloom.",
)
"""Whose functions mix no rows in backward passes: our rules and losses of tokens, sharding, and
BLOOM's GELU."""


def _own_backward(losses: Tensor) -> bool:
    """Whether a gradient passes through a Python function on its way: its backward may do anything.

    Activation checkpointing keeps no such function.
    """
    known: set[Node] = set()
    waiting = [losses.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in known:
            continue
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith(_TRUSTED):
            return True
        known.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False


def _named(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", str(function))
    if name in ("__get__", "__set__"):  # of a property
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name
