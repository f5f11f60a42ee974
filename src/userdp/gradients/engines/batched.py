r"""Many units in one backward pass, each clipped as if alone.

**What is guaranteed, and how.**

1. *Each unit's contribution has norm at most C(1 - m)*, m = `precision.margin`. Where a layer's
   per-unit gradients are formed, the norm is taken of the very numbers that are added: worst case,
   the rounding of blocks of squares (6.1e-5) and of the weighted sum over a pass. Where the norm
   comes from Gram matrices it is formed by other operations than the sum. It is never too small:
   what their rounding may have lost is added (`rules.grams`, with the proof). The sum is a float32
   product over S positions. With :math:`B = \sum_{st} |K_{st} H_{st}|`, of which the square of
   every partial sum is at most a part, it is off by at most :math:`(S + 2 \sqrt S) u \sqrt B`;
   the norm is larger by at least :math:`c u B / \|G\|`, c the mean of both sides' counts of
   roundings. So it is too long by at most :math:`(S + 2 \sqrt S)^2 u / (4 c)` of the norm: 2e-5 on
   a CPU and 1.3e-4 on accelerators, at all shapes up to 2^20 by 2^20 for which `forms.choose_form`
   takes Gram matrices.
2. *What other units contribute does not depend on a unit's presence, to the last bit.* Passes have
   fixed shapes (`engines.passes`), in each of which a unit's numbers in its place are a function of
   that unit and its masks (`engines.certify`, with the proof). A unit moves, beside its own
   contribution, the rounding of two passes' float32 sums: by 3.1e-4 C on rows made to be worst, in
   what is added behind it in a run (`engines.rounding`). Where memory ran out (`engines.room`),
   others change by a relative rho, 1e-6 in float32 and up to 6e-5 on rows made to be worst: the
   margin covers M changes in one direction while :math:`M \rho \le m`, and with high probability,
   where they are independent, while :math:`M \rho^2 \le m`.
3. *Which engine computes hangs on shapes and code.* A shape without a certificate is computed unit
   by unit, and so are the units of a pass that did something else than was certified. A unit whose
   norm float32 cannot hold is computed by plain autograd, in its place where the model draws masks;
   when a pass raises an error, each of its units is computed in its place beside copies of itself:
   the same bits. All are clipped at the same aim (`Task.aim`).

Sums over passes are float64, or float32 where the rounding of that is at most a tenth of m
(`userdp.gradients.engines.running`). So the claim is worst-case in real arithmetic, and stands in
floating point on measured roundings, with m chosen to cover them; `reference` is the engine for
those who want the worst case throughout.

Every trainable parameter is covered: one that is used in a way without a rule is found by its
ordinary gradient, when the shape is certified.

**Adapters** A (r x d) and B (p x r) are so small that all their per-unit gradients are formed:
``B_u^T A_u`` cost what the ordinary products do, and U r (d + p) numbers of memory. The frozen base
costs nothing beyond its activations' gradients.

Source: Charles et al. 2024, Algorithm 2; the forms of `userdp.gradients.engines.uses`. Hu et al.
2022 (LoRA); Chua et al. 2024, Section 5 (per-user gradients of adapters).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch
from torch import Tensor

from userdp.gradients.certificate.calls import Calls
from userdp.gradients.certificate.state import State
from userdp.gradients.clipping import clip_factors, multiplicable
from userdp.gradients.engines import reference
from userdp.gradients.engines.again import InPlace, with_copies
from userdp.gradients.engines.certify import Certificate, certificate
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form, Forms
from userdp.gradients.engines.passes import (
    Pass,
    PassShape,
    formed_bytes,
    layout_of,
    most_units,
    passes,
    whole_bytes,
)
from userdp.gradients.engines.running import running_dtype
from userdp.gradients.engines.tape import KnownTape, NotCoveredError, Tape, Workspace
from userdp.gradients.losses import may_be_of_rows
from userdp.gradients.model_randomness import GeneratorStates, StatesApart
from userdp.gradients.precision import reduced_products
from userdp.gradients.sums import ClippedSum, Pending
from userdp.gradients.units import Units

LEAST_CLIP = 1e-8
"""Below this squares may vanish in float32, and the reference engine takes over."""


def sum_of_passes(task: Task, *, form: Forms = None, strict: bool = False) -> ClippedSum:
    """The clipped sum of a task whose units may share passes (`choice.why_alone`).

    Args:
        task: what is to be computed.
        form: of linear layers; see `userdp.gradients.engines.forms.Forms`.
        strict: compute all units in passes, and raise where a shape has no certificate.

    Raises:
        NotCoveredError: ``strict``, and there is none: says why.
    """
    step = _Step(task, form, strict=strict)
    for one in step.passes:
        step.take(one)
    return step.finish()


class _Step:
    """What the passes of one sum share.

    Args:
        task: what is to be computed.
        form: of linear layers.
        strict: see `sum_of_passes`.
    """

    def __init__(self, task: Task, form: Forms, *, strict: bool) -> None:
        if task.item_clip_norm is not None or reduced_products():
            # Reduced products would make the Gram matrices disagree with what is added.
            form = Form.FORMED
        self._task, self._form, self._strict = task, form, strict
        self._aimed = task.but(l2_clip_norm=task.aim)
        self._state, self._states = State(task.model, task.loss), StatesApart()
        self._workspace = Workspace(self._state.tensors())
        self._known: dict[PassShape, Certificate] = {}
        self.passes, self._alone = passes(
            task.units,
            micro_batch=task.micro_batch,
            most_units=self._most_units,
            places_of=self._places_of,
        )

    def _most_units(self, rows: int, width: int) -> int:
        whole = self._form is Form.FORMED
        formed = whole_bytes(self._task) if whole else sum(formed_bytes(self._task, rows, width))
        places = most_units(self._task, formed)
        return places if self._task.places is None else min(places, self._task.places)

    def _places_of(self, shape: PassShape) -> tuple[int, ...]:
        found: Certificate | str = "there is room for one unit in a pass"
        if shape.units > 1:
            found = certificate(self._task, shape, self._form)
        if isinstance(found, Certificate):
            self._known[shape] = found
            self._workspace.strangers += [tensor for tensor, _ in found.held]
            return found.places
        if self._strict and shape.units > 1:
            raise NotCoveredError([found])
        return ()

    @cached_property
    def _total(self) -> ClippedSum:
        """The sum: made when the first pass has run, so that no device waits for it."""
        return self._task.zero(running_dtype(self._task, [len(p.numbers) for p in self.passes]))

    def take(self, one: Pass) -> None:
        """Add the units of a pass."""
        part, calls = one.of(self._task.units), self._known[one.shape].calls
        if calls.drew:
            self._states.load_next()
        begin = GeneratorStates.read() if calls.drew else None
        try:
            done = self._run(part, self._known[one.shape])
        except Exception as error:  # whatever the model's and the loss's code raise
            if not may_be_of_rows(error):
                raise
            self._state.put_back()
            for number, place in zip(one.numbers, one.places, strict=True):
                self._take_apart(Pass((number,), (place,), one.shape), part, calls, begin)
        else:
            self._add(one, part, done, begin)

    def _take_apart(
        self, one: Pass, part: Units, calls: Calls, begin: GeneratorStates | None
    ) -> None:
        """Add a unit of a pass in its place, beside copies of itself: nobody else reaches it.

        Where the pass raised an error; and where its gradient was not finite beside others: a
        kernel that fills up a tile with what lies behind it, times 0, makes a NaN of an infinity.
        """
        if begin is not None:
            begin.load()
        try:
            done = self._run(with_copies(part, one.places[0], ()), self._known[one.shape])
        except Exception as error:  # whatever the model's and the loss's code raise
            self._state.put_back()
            reference.count_failed(self._task, self._total, one.numbers[0], error)
        else:
            self._add(one, part, done, begin, beside_nobody=True)

    def _run(self, part: Units, known: Certificate) -> _Pass | None:
        """A pass over ``part``; None where it did something else than was certified."""
        try:
            done = _Pass(self._task, part, self._workspace, self._form, known.calls)
        except NotCoveredError:
            done = None
        if done is not None and not self._state.changed() and known.unwritten:
            return done
        self._state.put_back()
        return None

    def _add(
        self,
        one: Pass,
        part: Units,
        done: _Pass | None,
        begin: GeneratorStates | None,
        *,
        beside_nobody: bool = False,
    ) -> None:
        """Add a pass; units that it could not serve are computed once more."""
        task, total = self._task, self._total
        if done is None:
            self._alone += one.numbers
            return
        factors, usable = done.clipped(self._aimed.l2_clip_norm)
        places = list(one.places)
        losses, squares = done.losses[places], done.squared_norms[places]
        if task.ahead:
            total.pending.append(Pending.of(one.numbers, losses, squares, usable))
        else:
            done.leave_out(~usable)
        done.add_to(total.value, factors, places)
        if task.ahead:
            return
        numbers = list(one.numbers)
        total.losses[numbers] = losses.cpu()
        total.norms[numbers] = squares.sqrt().cpu()
        del done, factors  # what layers kept would lie beside the next pass's activations
        calls = self._known[one.shape].calls
        for at in (~usable[places]).nonzero().flatten().tolist():
            if not beside_nobody:
                self._take_apart(Pass((numbers[at],), (places[at],), one.shape), part, calls, begin)
            elif begin is None:
                self._alone.append(numbers[at])
            else:
                self._add_in_place(numbers[at], part, places[at], begin)

    def _add_in_place(self, number: int, part: Units, place: int, begin: GeneratorStates) -> None:
        """Add a unit whose norm float32 cannot hold, under the masks that it had."""
        aimed, total = self._aimed, self._total
        total.widen()
        one = aimed.but(
            loss=InPlace(aimed.loss, part, place, begin),
            units=part.select(place, place + 1),
            micro_batch=len(part.lengths),
        )
        try:
            reference.add_unit(one, total, number)
        except Exception as error:  # whatever the model's and the loss's code raise
            reference.count_failed(aimed, total, number, error)
        self._state.put_back()

    def finish(self) -> ClippedSum:
        """The sum, with the units that are computed alone."""
        total = self._total
        del self._workspace  # before the sum takes more memory
        total.widen()
        reference.add_units(self._aimed, total, self._alone, self._state, self._states)
        return total


class _Pass:
    """One forward and backward pass over ``units``, and what it left.

    Args:
        task: of which the units are a part.
        units: of this pass.
        workspace: where per-unit gradients are put.
        form: of linear layers; see `userdp.gradients.engines.forms.Forms`.
        calls: what a pass of this shape does; None follows and proves it.
    """

    def __init__(
        self,
        task: Task,
        units: Units,
        workspace: Workspace,
        form: Forms,
        calls: Calls | None = None,
    ) -> None:
        self._task, self._units = task, layout_of(units)
        items = task.item_clip_norm
        layout = self._units if items is None else layout_of(units, by_row=True)
        self._tape: Tape
        if calls is None:
            self._tape = Tape(task.parameters, layout, workspace, form=form)
        else:
            self._tape = KnownTape(task.parameters, layout, workspace, calls, form=form)
        self.losses, weights = self._tape.run(
            task.model, task.loss, units, owners=self._units, weighted=items is None
        )
        with torch.no_grad():
            if items is not None:
                self._clip_items(items, weights)
            self._squares = self._tape.squares_by_name()
            self.squared_norms = torch.stack(list(self._squares.values())).sum(0)

    def _clip_items(self, item_clip_norm: float, weights: Tensor) -> None:
        """Replace the rows' gradients by each unit's mean of clipped ones."""
        squares = self._tape.squared_norms()
        factors = clip_factors(squares.cpu(), l2_clip_norm=item_clip_norm).to(squares.device)
        factors = torch.where(squares.isfinite() & multiplicable([factors]), factors, torch.nan)
        mix = squares.new_zeros(self._units.units, self._units.rows)
        places = torch.arange(self._units.rows, device=squares.device)
        mix[self._units.unit_of_row, places] = factors * weights
        self._tape = self._tape.mixed(mix, self._units)

    def clipped(self, aim: float) -> tuple[dict[str, Tensor], Tensor]:
        """The factors that clip to ``aim``, by parameter, and which units can be added: (units,).

        Not one whose norm is not finite, or which is too far over the clip norm.
        """
        factors = self._task.rule.factors(self._squares, self._task.sizes, l2_clip_norm=aim)
        return factors, self.squared_norms.isfinite() & multiplicable(factors.values())

    def leave_out(self, bad: Tensor) -> None:
        """Add nothing of the units of ``bad``, if there are any: the host waits to hear of them.

        Where it does not wait, one that cannot be added makes the sum worthless.
        """
        if bool(bad.any()):
            self._tape.drop(bad)

    def add_to(
        self, total: Mapping[str, Tensor], factors: Mapping[str, Tensor], places: list[int]
    ) -> None:
        """Add the gradients of the units in ``places``, each times its factors."""
        units = len(self.squared_norms)
        if len(places) < units:
            counted = torch.zeros(units, dtype=torch.bool)
            counted[places] = True
            counted = counted.to(self.squared_norms.device)
            factors = {name: each * counted for name, each in factors.items()}
        self._tape.add_to(total, factors)
