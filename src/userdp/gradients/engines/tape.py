"""`Tape`: watch one forward and backward pass, and keep what each parameter's units need.

While a tape is active, every torch function that is given a trainable parameter it knows, and that
has a rule (`userdp.gradients.engines.rules`), runs as that rule: same value, same gradient for its
input, but in place of the parameter's summed gradient it hands the tape what is needed per unit.

Within, models under `torch.compile` run as they are written: in compiled code our functions would
lose their part, and whole gradients with it.

**Made of parameters.** What a model makes of parameters and constants alone (`1 + w`, a transpose,
``-exp(A_log)``) has a gradient by units as a parameter has, wherever a rule takes it: it is given a
name, and its per-unit gradients are carried back to its parameters through the ordinary graph that
torch kept, all units at once, when the backward pass is done (`_carry_back`). The chain rule is
linear, so a unit's part of a parameter is what that graph makes of the unit's part.

**A pass of one unit** needs no rules: every gradient is that unit's.

Every other torch function runs as it is. `Tape` proves: `certificate.rows` follows which row each
number belongs to; a rule applies only where that is known, and the losses tell in the end whether
the whole pass kept its rows apart. `KnownTape` compares its pass with one that was proved, call by
call, and rules are told the places that they were told then (`certificate.calls`).

What no rule covers goes on to torch as it is. The parameter then receives an ordinary gradient, and
that is how the engine learns, exactly, that it must fall back (`Tape.backward` names it).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from userdp.gradients.certificate.calls import Calls, Seen, told
from userdp.gradients.certificate.places.place import CONSTANT, FIRST, Place
from userdp.gradients.certificate.places.reads import ASKS
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.engines import rules as rules  # registers them
from userdp.gradients.engines.forms import Form, Forms
from userdp.gradients.engines.layer import RULES, ModuleRule, at_most_one_of_rows, ruled
from userdp.gradients.engines.rules.broadcast import ELEMENTWISE, with_rows
from userdp.gradients.engines.uses import Dense, Layout, Together, Use, joint, squared_norms, wide
from userdp.gradients.losses import Loss, checked_losses
from userdp.gradients.modes import (
    FunctionMode,
    deterministic,
    eagerly,
    moved,
    run_backward,
    run_batched_backward,
    unwatched,
)
from userdp.gradients.units import Units

NOT_BY_ROWS = "(losses of which it is not proved that rows were kept apart)"
OTHER_CALLS = "(other calls than those of the pass that was certified)"


class NotCoveredError(Exception):
    """Parameters were used in a way that no rule covers, or rows not seen to be kept apart.

    Nothing was computed.

    Attributes:
        names: what was not covered.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


KEPT_BYTES = 256 << 20
"""Most that buffers which outlive a pass may take, all of them together."""


class Workspace:
    """What the passes of one sum share: buffers, and what was looked up in the model.

    Buffers for per-unit gradients outlive a pass where they are small. Fresh pages cost as much as
    the sums of a small model. A large one computes long enough not to notice, and what its buffers
    hold would lie beside the activations of the next pass.

    Args:
        held: tensors of model and loss, which are constants.

    Attributes:
        strangers: further constants, which passes must be given by identity (`Rows.strangers`).
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        self.held = list(held)
        self.strangers: list[Tensor] = []
        self._buffers: dict[tuple[str, int], Tensor] = {}
        self._bytes = 0
        self._model: nn.Module | None = None
        self._ruled: list[tuple[nn.Module, ModuleRule]] | None = None

    def patches(self, model: nn.Module, tape: Tape) -> dict[nn.Module, Callable[..., Any]]:
        """The forwards by which rules replace those of modules while ``tape`` watches."""
        if model is not self._model:
            self._model, self._ruled = model, None
        asked = ruled(model) if self._ruled is None else self._ruled
        found = [
            (module, rule, forward)
            for module, rule in asked
            if "forward" not in module.__dict__
            for forward in [rule(module, tape)]
            if forward is not None
        ]
        if self._ruled is None:
            self._ruled = [(module, rule) for module, rule, _ in found]
        return {module: forward for module, _, forward in found}

    def take(self, name: str, number: int, shape: Sequence[int], like: Tensor) -> Tensor:
        """A buffer of ``shape``; the same memory for the same (name, number) if it is kept."""
        size = math.prod(shape)
        held = self._buffers.get((name, number))
        if held is None or held.numel() < size:
            added = (size - (0 if held is None else held.numel())) * like.element_size()
            held = like.new_empty(size)
            if self._bytes + added <= KEPT_BYTES:
                self._buffers[name, number], self._bytes = held, self._bytes + added
        return held[:size].view(*shape)


class Tape:
    """One pass over several units.

    Args:
        parameters: the trainable ones, by name.
        layout: which unit owns which row.
        workspace: where per-unit gradients are put.
        form: of linear layers; see `userdp.gradients.engines.forms.Forms`.

    Attributes:
        anchor, layout: see `userdp.gradients.engines.layer.Watcher`.
        calls: what the pass did.
    """

    derives: ClassVar[bool] = True
    """Whether what is made of parameters has a name, and a lone unit takes ordinary gradients."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: Layout,
        workspace: Workspace,
        *,
        form: Forms = None,
    ) -> None:
        first = next(iter(parameters.values()))
        self.anchor = torch.zeros((), device=first.device, requires_grad=True)
        self.layout = layout
        self._naming = self.derives and layout.rows > 1
        self._on_cpu = first.device.type == "cpu"
        self.calls = Calls()
        self._rows = Rows(layout.rows)
        self._names = {id(p): name for name, p in parameters.items()}
        self._told_names = self._names | {id(t): f"(at {id(t)})" for t in workspace.strangers}
        self._parameters = parameters
        self._workspace = workspace
        self._form = form
        self._uses: dict[str, list[Use]] = defaultdict(list)
        self._known: dict[str, Tensor] = {}
        self._made: dict[int, _Made] = {}

    def name_of(self, tensor: object) -> str | None:
        """The name of a trainable parameter, or of what was made of some; None for all else."""
        made = self._made.get(id(tensor))
        if made is not None:
            return made.name if made.tensor._version == made.version else None
        return self._names.get(id(tensor))

    @property
    def drew(self) -> bool:
        """Whether coins were thrown."""
        return self._rows.drew

    @property
    def strangers(self) -> list[Tensor]:
        """See `userdp.gradients.certificate.rows.Rows`."""
        return self._rows.strangers

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``, as a rule asks; None where that is unknown."""
        place = self._rows.place_of(tensor)
        self.calls.asked.append((tensor.shape, place))
        return place

    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        """Note where rows lie in what a rule made."""
        return self._rows.mark(tensor, place)

    def told(self, args: Iterable[object], kwargs: Mapping[str, object]) -> tuple[object, ...]:
        """What a call was given, as it is compared with a later one."""
        return told(self._told_names, args, kwargs)

    def note_made(self, result: object) -> bool:
        """Name ``result`` if parameters and constants alone made it, and it passes gradients on."""
        if not self._naming or not torch.is_grad_enabled():
            return False
        if isinstance(result, tuple | list):
            named = [self.note_made(part) for part in result]
            return any(named)
        return (
            isinstance(result, Tensor)
            # Constants need a gradient only for the sake of parameters.
            and result.requires_grad
            and self._rows.place_of(result) == CONSTANT
            and self.name_made(result)
        )

    def name_made(self, result: Tensor) -> bool:
        """Name ``result``, unless it has a name."""
        if id(result) in self._names or id(result) in self._made:
            return False
        self._made[id(result)] = _Made(f"(made {len(self._made)})", result, result._version)
        return True

    def keep(self, name: str, use: Use, *factors: Tensor) -> None:
        """Keep a use that a rule hands over in the backward pass; see `Watcher.keep`."""
        uses = self._uses[name]
        use = use.chosen(
            self.form_of(name),
            lambda shape, like: self._workspace.take(name, len(uses), shape, like),
        )
        # While formed gradients are still in the cache; and while an accelerator is so far behind
        # that what the host asks for takes no time.
        if not uses and (isinstance(use, Dense) or not self._on_cpu):
            self._known[name] = use.squared_norms()
        uses.append(use)

    def form_of(self, name: str) -> Form | None:
        """The form of a linear layer's parameter; None chooses by cost."""
        return self._form.get(name) if isinstance(self._form, Mapping) else self._form

    @contextmanager
    def watching(self, model: nn.Module, *by_row: Tensor | None) -> Iterator[None]:
        """Intercept the trainable parameters of ``model`` within; ``by_row`` are (rows, ...)."""
        patched = self._workspace.patches(model, self)
        try:
            for module, forward in patched.items():
                module.__dict__["forward"] = forward
            with eagerly(), deterministic(self.anchor.device), self._following(model, by_row):
                yield
        finally:
            for module in patched:
                module.__dict__.pop("forward", None)

    def rows_of(self) -> Rows:
        """What follows the rows of a pass."""
        return Rows(self.layout.rows, [*self._workspace.held, *self._workspace.strangers])

    def _following(
        self, model: nn.Module, by_row: Iterable[Tensor | None]
    ) -> AbstractContextManager[Any]:
        """Within, calls are followed that a pass of ``model`` makes."""
        return self._proving(model, by_row)

    @contextmanager
    def _proving(self, model: nn.Module, by_row: Iterable[Tensor | None]) -> Iterator[None]:
        self._rows = self.rows_of()
        for tensor in by_row:
            if tensor is not None:
                self._rows.mark(tensor, FIRST)
        with self._rows.watching(model), _Proving(self):
            yield

    def prove(self, losses: Tensor) -> bool:
        """Whether the pass kept its rows apart, from its tokens to its losses, (rows,)."""
        return self._rows.prove(losses)

    def kept_apart(self) -> bool:
        """Whether it did so in its backward pass too."""
        return self._rows.kept_apart()

    def run(
        self, model: nn.Module, loss: Loss, units: Units, *, owners: Layout, weighted: bool = True
    ) -> tuple[Tensor, Tensor]:
        """A forward and a backward pass over ``units``.

        Args:
            model: with the tape's parameters.
            loss: per-row loss.
            units: of the pass.
            owners: their layout, also where the tape's own takes each row for a unit.
            weighted: whether each row's loss counts as its share in its unit's mean.

        Returns:
            Each unit's mean loss, float64 (units,); and each row's share, float64 (rows,).

        Raises:
            NotCoveredError: a parameter is used in a way that no rule covers, or it was not seen
                that rows were kept apart.
        """
        with self.passing(model, loss, units, owners=owners, weighted=weighted) as ran:
            losses, shares = ran
        return mean_losses(losses, shares, owners), shares.double()

    @contextmanager
    def passing(
        self, model: nn.Module, loss: Loss, units: Units, *, owners: Layout, weighted: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """`run`; and within, what belongs to the pass is still watched.

        Returns:
            The losses, with their graph, and each row's share; (rows,).
        """
        rows, counts = units.all_rows(), units.offsets.diff()
        each = moved(torch.repeat_interleave(1 / counts.double(), counts), units.lengths.device)
        with torch.enable_grad(), self.watching(model, *rows):
            losses = checked_losses(loss, model, *rows)
            proved = self.prove(losses)
            with unwatched():
                shares = each.to(losses.dtype)
                total = (losses * shares if weighted else losses).sum()
            missed = self.backward(total)
            proved = proved and self.kept_apart()
            if missed or not proved:
                raise NotCoveredError([*([] if proved else [NOT_BY_ROWS]), *missed])
            yield losses, shares

    def backward(self, total: Tensor) -> list[str]:
        """Run the backward pass; the names of parameters that no rule covered."""
        gradients = run_backward(total, (self.anchor, *self._parameters.values()))[1:]
        missed = {n: g for n, g in zip(self._parameters, gradients, strict=True) if g is not None}
        if self.derives and self.layout.units == 1:
            for name, gradient in missed.items():
                self.keep(name, Dense(wide(gradient.to_dense())[None]))
            missed = {}
        return list(missed) or self._carry_back()

    def _carry_back(self) -> list[str]:
        """Turn per-unit gradients of what was made of parameters into those of the parameters.

        Returns:
            The names of what was written to after it was used: its graph is another one by now.
        """
        made = [one for one in self._made.values() if one.name in self._uses]
        written = [one.name for one in made if one.tensor._version != one.version]
        if written or not made:
            return written
        with unwatched():  # the model is not running
            units = [joint(self._uses.pop(one.name)).gradients.to(one.tensor.dtype) for one in made]
        for one in made:
            self._known.pop(one.name, None)
        parts = run_batched_backward([one.tensor for one in made], units, self._parameters.values())
        with unwatched():
            for name, part in zip(self._parameters, parts, strict=True):
                if part is not None:
                    self.keep(name, Dense(wide(part.detach())))
        return []

    def squared_norms(self) -> Tensor:
        """Float64, (units,): over all parameters; NaN or inf for units that need other means."""
        return torch.stack(list(self.squares_by_name().values())).sum(0)

    def squares_by_name(self) -> dict[str, Tensor]:
        """The same for each trainable parameter; zeros for one that was not used."""
        nothing = torch.zeros(self.layout.units, dtype=torch.float64, device=self.anchor.device)
        squares = dict.fromkeys(self._parameters, nothing)
        for name, uses in self._uses.items():
            squares[name], self._uses[name] = squared_norms(uses, self._known.get(name))
        return squares

    def mixed(self, weights: Tensor, layout: Layout) -> Tape:
        """A tape of other units, each a weighted sum of this tape's.

        Args:
            weights: (new units, units); a NaN makes the new unit NaN, a 0 leaves the unit out.
            layout: of the new units.
        """
        other = Tape(self._parameters, layout, self._workspace, form=Form.FORMED)
        for name, uses in self._uses.items():
            gradients, rows = joint(uses).gradients, []
            flat = gradients.reshape(len(gradients), -1)
            for unit in weights:
                here = unit.nonzero().flatten()
                mix = unit[here].to(gradients.dtype) @ flat[here]
                rows.append(mix.view(gradients.shape[1:]))
            other._uses[name].append(Dense(torch.stack(rows)))
        return other

    def add_to(self, total: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """Add each unit's gradient times its factor; units of factor 0 are left out, NaN or not.

        What was kept of a parameter is let go once it has been added: the sum may take its memory.
        """
        together = Together()
        while self._uses:
            name, uses = self._uses.popitem()
            for use in uses:
                if isinstance(use, Dense) and len(uses) == 1 and not self._on_cpu:
                    together.add(total[name], use, factors[name])
                else:
                    use.add_to(total[name], factors[name])
        together.finish()

    def drop(self, bad: Tensor) -> None:
        """Put zeros in place of all that the units of ``bad`` (bool, (units,)) left behind."""
        for name, uses in self._uses.items():
            self._uses[name] = [use.without(bad) for use in uses]


def mean_losses(losses: Tensor, shares: Tensor, owners: Layout) -> Tensor:
    """Each unit's mean loss, float64 (units,)."""
    each = losses.detach().double() * shares.double()
    return each.new_zeros(owners.units).index_add_(0, owners.unit_of_row, each)


class _Made(NamedTuple):
    """What was made of parameters and constants, for as long as nothing was written to it."""

    name: str
    tensor: Tensor
    version: int


class _Proving(FunctionMode):
    """Sends the functions that have a rule to it, where a trainable parameter is involved."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        tape = self._tape
        try:
            if func in ASKS:  # of nothing that a rule, a name or a type could come from
                return tape._rows.run(func, args, kwargs)
            return self._answer(Seen(func, tape.told(args, kwargs)), args, kwargs)
        except Exception as error:
            tape._rows.note_error(error, args, kwargs)
            raise

    def _answer(self, seen: Seen, args: Any, kwargs: Mapping[str, Any]) -> Any:
        tape, func = self._tape, seen.function
        rule, answer = RULES.get(func), None
        # A call is noted before it runs: checkpointing may end it by an error.
        number, asked = len(tape.calls.seen), len(tape.calls.asked)
        tape.calls.seen.append(seen._replace(ruled=rule is not None))
        if rule is not None and torch.is_grad_enabled():
            values = (*args, *kwargs.values()) if kwargs else args
            if at_most_one_of_rows(tape, values):
                answer = rule(tape, *args, **kwargs)
        if answer is None:
            del tape.calls.asked[asked:]
            spread = with_rows(tape, func, args, kwargs) if func in ELEMENTWISE else None
            if spread is None:
                del tape.calls.asked[asked:]
            seen = seen._replace(spread=spread is not None)
            tape.calls.seen[number] = seen
            answer = tape._rows.run(func, spread or args, kwargs)
            tape.calls.seen[number] = seen._replace(made=tape.note_made(answer))
        return answer


class KnownTape(Tape):
    """A pass of a shape that was certified; it must make the calls that were made then.

    Args:
        parameters, layout, workspace, form: as of `Tape`.
        known: what the certified pass did.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        layout: Layout,
        workspace: Workspace,
        known: Calls,
        *,
        form: Forms = None,
    ) -> None:
        super().__init__(parameters, layout, workspace, form=form)
        self.calls = known
        self._at = self._asked = 0
        self._strayed = False

    @property
    def drew(self) -> bool:
        return self.calls.drew

    def place_of(self, tensor: Tensor) -> Place | None:
        if self._asked < len(self.calls.asked):
            shape, place = self.calls.asked[self._asked]
            self._asked += 1
            if shape == tensor.shape:
                return place
        raise self._other()

    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        return tensor

    def next(self, function: Any, args: Any, kwargs: Mapping[str, Any]) -> Seen:
        """The call that comes now, as it was certified.

        Raises:
            NotCoveredError: it was another one.
        """
        if self._at < len(self.calls.seen):
            seen = self.calls.seen[self._at]
            self._at += 1
            # Equal, where each look at an attribute (`Tensor.T`) makes a function anew.
            if seen.function == function and seen.given == self.told(args, kwargs):
                return seen
        raise self._other()

    def _other(self) -> NotCoveredError:
        self._strayed = True  # also where the model's own code catches this
        return NotCoveredError([OTHER_CALLS])

    def _following(
        self, model: nn.Module, by_row: Iterable[Tensor | None]
    ) -> AbstractContextManager[Any]:
        return _Comparing(self)

    def prove(self, losses: Tensor) -> bool:
        return not self._strayed

    def kept_apart(self) -> bool:
        """Whether all calls of the certified pass came again, those of the backward pass too."""
        return not self._strayed and (self._at, self._asked) == (
            len(self.calls.seen),
            len(self.calls.asked),
        )


class _Comparing(FunctionMode):
    """Compares each call with the certified one, and answers as that was answered."""

    def __init__(self, tape: KnownTape) -> None:
        super().__init__()
        self._tape = tape

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func in ASKS:
            return func(*args, **kwargs)
        tape = self._tape
        seen = tape.next(func, args, kwargs)
        if seen.ruled:
            values = (*args, *kwargs.values()) if kwargs else args
            if at_most_one_of_rows(tape, values):
                answer = RULES[func](tape, *args, **kwargs)
                if answer is not None:
                    return answer
            raise tape._other()
        if seen.spread:
            args = with_rows(tape, func, args, kwargs) or args
        answer = func(*args, **kwargs)
        if seen.made:
            for part in answer if isinstance(answer, tuple | list) else (answer,):
                if isinstance(part, Tensor) and part.requires_grad:
                    tape.name_made(part)
        return answer
