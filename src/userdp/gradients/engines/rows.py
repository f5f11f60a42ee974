r"""`Rows`: which row of the pass each number belongs to, followed from function to function.

The batched engines give each place of a layer's input to the row that owns it. A shape cannot tell
who that is: the tokens that a mask selects, or those that a router sends to an expert, may have any
count, that of the whole pass among them. So the owner is derived from the code that made the
tensor, in the very pass that is clipped.

A tensor is **by rows** at ``Place(dim, inner)``: index i of dimension ``dim``, whose size is rows x
``inner``, belongs to row i // ``inner``. It is **constant** where no row's data reached it
(parameters, buffers, positions). Everything else is unknown.

*What is proved.* A rule (`place_rules`) gives its result a place only if, for every value of the
arguments, an element of row r is a function of constants and of elements of row r. By induction
over the functions that ran, a loss that is by rows at ``Place(0)`` splits the whole computation
into one part for each row, and these share nothing but constants. So the derivative of row r's loss
by another row's element is zero, and a layer's gradient, cut at the places of its input, is each
row's own: in this pass, whatever its data and shapes and the branches taken.

A function without a rule makes its result unknown, and unknown stays unknown: all that a missing
rule can do is to let the reference engine compute. A write in place is seen by the version that a
tensor shares with its views. A number that Python reads from data (`Tensor.item`, the length of a
selection) would pass by the proof, so a pass in which that happens is not proved. The condition of
a branch may be read: whichever branch runs is followed.

*What is not seen:* backward passes of somebody's own (`torch.autograd.Function`, hooks on
gradients), which are taken for derivatives of what was followed; and the pass's own width. A model
or a loss in which these mix rows is refused by `userdp.gradients.coupling`, on made-up rows.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from userdp.gradients.engines.place_rules import PLACES, READS
from userdp.gradients.engines.places import CONSTANT, FIRST, Call, Place

_KEY = "_userdp_place"


class _Mark(NamedTuple):
    """A place, for the pass of ``owner`` and for as long as nothing was written to the tensor."""

    place: Place
    owner: Rows
    version: int


class Rows:
    """The places of one pass.

    Args:
        count: rows in the pass.
        model: the tensors that its modules hold when the pass begins are constants.
    """

    def __init__(self, count: int, model: nn.Module) -> None:
        self.count = count
        self._read_numbers = False
        self._paused = False
        self._held: dict[int, tuple[Tensor, int]] = {}
        for module in model.modules():
            own = (module._parameters, module._buffers, module.__dict__)
            for value in itertools.chain.from_iterable(held.values() for held in own):
                if isinstance(value, Tensor):
                    self._held[id(value)] = (value, value._version)

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``; None where that is unknown."""
        mark: _Mark | None = tensor.__dict__.get(_KEY)
        if mark is not None and mark.owner is self and mark.version == tensor._version:
            return mark.place
        held = self._held.get(id(tensor))
        if held is not None:
            return CONSTANT if held[1] == tensor._version else None
        # Layers of a sharded model are gathered while the pass runs.
        return CONSTANT if _is_parameter(tensor) else None

    def mark(self, tensor: Tensor, place: Place | None) -> Tensor:
        """Note where rows lie in ``tensor``; a place that its shape contradicts is dropped."""
        if place is not None and place.dim is not None:
            size = tensor.size(place.dim) if place.dim < tensor.dim() else -1
            if size < 0 or (not place.counts and size != self.count * place.inner):
                place = None
        if _is_parameter(tensor) or id(tensor) in self._held:
            return tensor
        if place is None:
            tensor.__dict__.pop(_KEY, None)
        else:
            tensor.__dict__[_KEY] = _Mark(place, self, tensor._version)
        return tensor

    def prove(self, losses: Tensor) -> bool:
        """Whether this pass kept its rows apart, from its tokens to its losses, (rows,)."""
        return self.count == 1 or (self.place_of(losses) == FIRST and not self._read_numbers)

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call ``function``, and note where rows lie in what it returns."""
        if self.count == 1 or self._paused:  # of one row, everything is that row's
            return function(*args, **kwargs)
        rule = PLACES.get(function)
        if rule is None:
            values = READS.get(function)
            if values is not None and isinstance(args[0], Tensor):
                self._note_reading(args[0], values=values)
            return function(*args, **kwargs)
        call = Call(self.place_of, args, kwargs)
        call.result = result = function(*args, **kwargs)
        if isinstance(result, Tensor):
            self.mark(result, rule(call))
        elif isinstance(result, tuple | list):
            place = rule(call)
            for part in result:
                if isinstance(part, Tensor):
                    self.mark(part, place)
        return result

    @contextmanager
    def through_shards(self, model: nn.Module) -> Iterator[None]:
        """Within, places survive what FSDP2 does before and after the layers of ``model``.

        It hands a layer its arguments through a function of its own, an identity that returns other
        tensors over the same memory; and it looks at shapes of the parameters that it gathers,
        which is nobody's data.
        """
        handles = []
        for module in model.modules() if "torch.distributed.fsdp" in sys.modules else ():
            if type(module).__name__.startswith("FSDP"):
                handles += self._hooks(module)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, module: nn.Module) -> list[RemovableHandle]:
        given: list[Tensor] = []

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            given[:] = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            self._paused = True

        def after(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._paused = False
            got = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            with torch._C.DisableTorchFunction():
                for old, new in zip(given, got, strict=True):
                    if new is not old and _same_memory(old, new):
                        self.mark(new, self.place_of(old))
            given.clear()

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

    def _note_reading(self, tensor: Tensor, *, values: bool) -> None:
        place = self.place_of(tensor)
        # The shape of what is by rows is the pass's own.
        if place is None or (values and not place.constant):
            self._read_numbers = True


def _is_parameter(tensor: Tensor) -> bool:
    # The second question is answered by Python code of torch's, and is asked for each tensor.
    return type(tensor) is not Tensor and isinstance(tensor, nn.Parameter)


def _same_memory(one: Tensor, two: Tensor) -> bool:
    return one.data_ptr() == two.data_ptr() and (one.shape, one.stride(), one.dtype) == (
        two.shape,
        two.stride(),
        two.dtype,
    )
