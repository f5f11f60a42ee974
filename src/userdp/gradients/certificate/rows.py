r"""`Rows`: which row of the pass each number belongs to, followed from function to function.

The batched engines give each place of a layer's input to the row that owns it. A shape cannot tell
who that is: the tokens that a mask selects, or those that a router sends to an expert, may have any
count, that of the whole pass among them. So the owner is derived from the code that made the
tensor, in the very pass that is clipped.

A tensor is **by rows** at ``Place(dim, inner)``: index i of dimension ``dim``, whose size is rows x
``inner``, belongs to row i // ``inner``. It is **constant** where no row's data reached it
(parameters, buffers, positions). Everything else is unknown.

*What is proved.* A rule (`places`) gives its result a place only if, for every value of the
arguments, an element of row r is a function of constants and of elements of row r. By induction
over the functions that ran, a loss that is by rows at ``Place(0)`` splits the whole computation
into one part for each row, and these share nothing but constants. So the derivative of row r's loss
by another row's element is zero, and a layer's gradient, cut at the places of its input, is each
row's own: in this pass, whatever its data and shapes and the branches taken.

A function without a rule makes its result unknown, unless all that it was given is constant and it
drew nothing; and a tensor of unknown place ends the proof: all that a missing rule can do is to let
the reference engine compute. A write in place is seen by
the version that a tensor shares with its views. What Python reads from data passes by the proof: a
number, the length of a selection, also the condition of a branch, since a row's loss is then a
function of whatever chose the branch. So does a step: a choice of experts, a rounding to integers
(`places.steps`). A pass in which that happens is not proved; nor is one in which a tensor's memory
is handed out, that writes to a tensor of unknown origin, that calls code under `torch.jit` or hands
a function to torch, that draws from a generator of its own, or whose gradients go through code of
somebody's own (`torch.autograd.Function`, backward hooks).

*Assumed:* torch's functions do what their documentation says; checkpointed code computes the same
when it runs again (torch compares the shapes of what it saves).
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
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from userdp.gradients.certificate.places.numbers import THROWS, throws
from userdp.gradients.certificate.places.place import CONSTANT, FIRST, PLACES, Call, Place
from userdp.gradients.certificate.places.reads import (
    ASKS,
    FIXED_LENGTH,
    HANDS_OUT,
    KEEPS_STATISTICS,
    READS_KINDS,
)
from userdp.gradients.certificate.places.steps import steps
from userdp.gradients.certificate.places.writes import assigned, may_write, whole, written_to
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.modes import unwatched

_KEY = "_userdp_place"

_NO_BASE = None, None

_SET = Tensor.__setitem__


def writes(tensor: Tensor) -> int:
    """How often the memory of ``tensor`` was written to."""
    return 0 if tensor.is_inference() else tensor._version


class _Mark(NamedTuple):
    """A place, for the pass of ``owner`` and for as long as nothing was written to the tensor."""

    place: Place
    owner: Rows
    version: int


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
    """

    def __init__(self, count: int, held: Iterable[Tensor] = ()) -> None:
        self.count = count
        self.drew = False
        self.strangers: list[Tensor] = []
        self._read = False
        self._seed = torch.initial_seed()
        self._paused = self._proved = False
        self._held = {id(tensor): (tensor, writes(tensor)) for tensor in held}
        self._written: set[int] = set()  # of what is held, by a call that was seen
        self._gathered: dict[int, Tensor] = {}

    @property
    def read(self) -> bool:
        """Whether rows were lost sight of, or Python read somebody's numbers."""
        return self._read

    @property
    def aside(self) -> bool:
        """Whether FSDP2 is at work, whose calls are not the model's."""
        return self._paused or self._gathers()

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``; None where that is unknown."""
        mark: _Mark | None = tensor.__dict__.get(_KEY)
        if mark is not None and mark.owner is self and mark.version == writes(tensor):
            return mark.place
        held = self._held.get(id(tensor))
        if held is not None:
            unchanged = held[1] == writes(tensor) and id(tensor) not in self._written
            return CONSTANT if unchanged else None
        # Being a parameter is no answer: anybody may make one, of somebody's data.
        return CONSTANT if id(tensor) in self._gathered else None

    def mark(self, tensor: Tensor, place: Place | None) -> Tensor:
        """Note where rows lie in ``tensor``; a place that its shape contradicts is dropped."""
        if place is not None and place.dim is not None:
            size = tensor.shape[place.dim] if 0 <= place.dim < tensor.dim() else 0
            if place.counts:
                place = (
                    place if size > 1 else CONSTANT
                )  # one index is everywhere: it counts nothing
            elif size != self.count * place.inner:
                place = None
        if _is_parameter(tensor) or id(tensor) in self._held:
            if place is None or not place.constant:
                self._written.add(id(tensor))  # its version may have been told to stay
            return tensor
        if place is None:
            tensor.__dict__.pop(_KEY, None)
        else:
            tensor.__dict__[_KEY] = _Mark(place, self, writes(tensor))
        return tensor

    def prove(self, losses: Tensor) -> bool:
        """Whether this pass kept its rows apart, from its tokens to its losses, (rows,)."""
        self._proved = True
        with unwatched():  # what is asked here, the model did not ask
            return self.count == 1 or (
                not self._read and self.place_of(losses) == FIRST and not _own_backward(losses)
            )

    def kept_apart(self) -> bool:
        """Whether nothing was read of data by what ran since `prove`: checkpointed code, again."""
        return self.count == 1 or not self._read

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call ``function``, and note where rows lie in what it returns."""
        if self.count == 1 or self.aside:  # of one row, all is that row's
            return function(*args, **kwargs)
        if function in ASKS:
            return self._ask(function, args, kwargs)
        if not self._read:  # from the first result of unknown place on, nothing is followed
            given = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
            self.strangers += [one for one in given if self.place_of(one) is None]
        self._read |= (
            function in KEEPS_STATISTICS
            or any(isinstance(value, _OWN) for value in (*args, *kwargs.values()))
            # Nobody saw whence such a tensor came: it may share a constant's memory.
            or any(self.place_of(tensor) is None for tensor in written_to(function, args, kwargs))
        )
        rule = PLACES.get(function)
        if rule is None or not args:  # a rule looks for its tensor where the function has it first
            if function is _SET:
                return self._set(args)
            begin = self._begin_of_constants(function, args, kwargs)
            result = function(*args, **kwargs)
            self._note_reading(function, args, kwargs, result)
            if begin is not None and GeneratorStates.read() == begin:
                for part in result if isinstance(result, tuple | list) else (result,):
                    if isinstance(part, Tensor):
                        self.mark(part, CONSTANT)
            self._end_if_unknown(result)
            return result
        call = Call(self.place_of, args, kwargs)
        base, before = _NO_BASE
        if may_write(function) or args[-1] is True or kwargs:  # an argument may be `inplace`
            base, before = self._base_of(args[0])
        call.result = result = function(*args, **kwargs)
        if function in THROWS and throws(function, call):
            self.drew = True
            self._read |= torch.initial_seed() != self._seed  # seeded within: known masks
        if isinstance(result, Tensor):
            known = call.rest_known() and not steps(function, call, result)
            self.mark(result, rule(call) if known and _named_as_known(kwargs) else None)
            if base is not None and result is args[0]:
                self.mark(base, whole(base, before, call, self.place_of(result)))
        elif isinstance(result, tuple | list):
            place = rule(call) if call.rest_known() and _named_as_known(kwargs) else None
            for part in result:
                if not isinstance(part, Tensor):
                    self._end_if_unknown(part)
                elif place is not None and steps(function, call, part):
                    self.mark(part, None)  # the indices of `max`, say: harmless until they are used
                else:
                    self.mark(part, place)
            if place is None:
                self._note_reading(function, args, kwargs, result)
            else:
                return result
        self._end_if_unknown(result)
        return result

    def _begin_of_constants(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> GeneratorStates | None:
        """The generators' states before a function without a rule makes something of constants.

        What it makes is constant too, unless it draws, or hands out memory that held other numbers.
        """
        given = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
        name = getattr(function, "__name__", "empty")
        if "empty" in name or "resize" in name or not given:
            return None
        return GeneratorStates.read() if all(self._is_constant(one) for one in given) else None

    def _is_constant(self, tensor: Tensor) -> bool:
        place = self.place_of(tensor)
        return place is not None and place.constant

    def _end_if_unknown(self, result: object) -> None:
        """Note a tensor of unknown place: what a model does with it is not followed any further."""
        if isinstance(result, Tensor):
            self._read = self._read or self.place_of(result) is None
        elif isinstance(result, tuple | list):
            for part in result:
                self._end_if_unknown(part)

    def _ask(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call one of `ASKS`, as a third of all calls that a model makes."""
        # In the backward pass torch compares the shapes of what checkpointed code saves.
        if function not in READS_KINDS and not (self._read or self._proved):
            given = tree_leaves((args, kwargs)) if kwargs else args
            # The shape of what is by rows is the pass's own.
            self._read = any(self.place_of(t) is None for t in given if isinstance(t, Tensor))
        return function(*args, **kwargs)

    def _base_of(self, tensor: object) -> tuple[Tensor | None, Place | None]:
        """What ``tensor`` is a view of, and its place; nothing where it is no view."""
        base = tensor._base if isinstance(tensor, Tensor) else None
        return base, None if base is None else self.place_of(base)

    def _set(self, args: tuple[Any, ...]) -> None:
        """``tensor[index] = value``."""
        tensor = args[0]
        call = Call(self.place_of, args, {})
        base, before = self._base_of(tensor)
        place = assigned(call)
        _SET(*args)
        self.mark(tensor, place)
        if base is not None:
            self.mark(base, whole(base, before, call, self.place_of(tensor)))
        self._end_if_unknown(tensor)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Within a pass of ``model``: note code under `torch.jit`, and see through shards."""
        own = [kind.__call__ for kind in _SCRIPTED]
        try:
            for kind, call in zip(_SCRIPTED, own, strict=True):
                kind.__call__ = self._noted(call)
            with self._through_shards(model):
                yield
        finally:
            for kind, call in zip(_SCRIPTED, own, strict=True):
                kind.__call__ = call

    def _noted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._read = True
            return call(*args, **kwargs)

        return noted

    def note_error(
        self, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Note a call that ended in ``error``: a model that catches it learned of the numbers."""
        if type(error).__name__ != "_StopRecomputationError":  # torch's own way out
            self._note_learned(args, kwargs)

    @contextmanager
    def _through_shards(self, model: nn.Module) -> Iterator[None]:
        """Within, places survive what FSDP2 does before and after the layers of ``model``.

        It hands a layer its arguments through a function of its own, an identity that returns other
        tensors over the same memory; and it looks at shapes of the parameters that it gathers,
        which is nobody's data.
        """
        handles = []
        fsdp: Any = sys.modules.get("torch.distributed.fsdp")
        for module in model.modules() if fsdp else ():
            if isinstance(module, fsdp.FSDPModule):
                handles += self._hooks(module)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _gathers(self) -> bool:
        """Whether FSDP2 is at work in a backward pass, and not a layer that is computed again.

        Only checkpointing has hooks on what a graph saves while a backward pass runs.
        """
        saves = torch._C._autograd._top_saved_tensors_default_hooks
        return self._proved and bool(self._gathered) and saves(True) is None

    def _hooks(self, module: nn.Module) -> list[RemovableHandle]:
        given: list[Tensor] = []

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            given[:] = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self._paused = True

        def after(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._paused = False
            got = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            with unwatched():
                for old, new in zip(given, got, strict=True):
                    if new is not old and _same_memory(old, new):
                        self.mark(new, self.place_of(old))
            given.clear()
            for inner in module.modules():  # whose parameters are whole now
                own = [p for p in inner._parameters.values() if p is not None]
                self._gathered.update((id(p), p) for p in own)

        def pause(module: nn.Module, args: Any, result: Any) -> None:
            self._paused = True

        def resume(module: nn.Module, args: Any, result: Any) -> None:
            self._paused = False

        return [
            module.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
            module.register_forward_pre_hook(after, with_kwargs=True),
            module.register_forward_hook(pause, prepend=True),
            module.register_forward_hook(resume),
        ]

    def _note_reading(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: object,
    ) -> None:
        """Note whether Python learned something of somebody's data, or got hold of its memory.

        Whatever is neither a tensor nor nothing tells something of what it was made of, unless all
        of that is constant: a number, a truth, text, how many parts there are. What is no plain
        value either (an array, a storage, a node of the graph) may be written to.
        """
        if isinstance(result, Tensor) or (result is None and function not in HANDS_OUT):
            self._read |= function in HANDS_OUT
            return
        if isinstance(result, tuple | list) and all(isinstance(part, Tensor) for part in result):
            if function in FIXED_LENGTH or type(result).__module__ == "torch.return_types":
                return
        elif function in HANDS_OUT or not all(isinstance(v, _PLAIN) for v in tree_leaves(result)):
            self._read = True
            return
        self._note_learned(args, kwargs)

    def _note_learned(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that Python learned something of what was given, unless all of it is constant."""
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        self._read |= not all(map(self._is_constant, given))


_OTHER_NAMES = frozenset(["axis", "keepdims", "x", "a", "x1", "x2"])
"""Those of NumPy's for ``dim``, ``keepdim``, ``input`` and ``other``, which torch takes too."""


def _named_as_known(kwargs: Mapping[str, Any]) -> bool:
    """Whether a rule finds all arguments by the names that it knows."""
    return not kwargs or _OTHER_NAMES.isdisjoint(kwargs)


def _is_parameter(tensor: Tensor) -> bool:
    # The second question is answered by Python code of torch's, and is asked for each tensor.
    return type(tensor) is not Tensor and isinstance(tensor, nn.Parameter)


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


def _same_memory(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors are the same numbers; where a dimension has one index, no step tells."""
    if (one.data_ptr(), one.shape, one.dtype) != (two.data_ptr(), two.shape, two.dtype):
        return False
    steps = zip(one.shape, one.stride(), two.stride(), strict=True)
    return all(size == 1 or a == b for size, a, b in steps)
