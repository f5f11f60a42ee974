r"""Many units in one backward pass, each clipped as if alone: the book-keeping and LoRA engines.

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
   fixed shapes (`engines.passes`), so that the numbers in a place are a function of the unit that
   has it, and of the unit alone where all places give the same bits (`engines.own_bits`, which is
   asked where the model computes in fewer bits than float32; in float32 tests look at it). A unit
   moves, beside its own contribution, the rounding of two passes' float32 sums: by 3.1e-4 C on rows
   made to be worst, in what is added behind it in a run (`engines.rounding`). In some cases M
   others change by a relative rho, 1e-6 in float32 and up to 6e-5 on rows made to be worst: memory
   that ran out (`engines.room`); and, in a model that draws masks, the last pass of each shape, an
   error in somebody's rows (`engines.failing`), and units that are computed again under their masks
   (`engines.replay`). There the margin covers the worst case, all M changes in one direction, while
   :math:`M \rho \le m`; and with high probability, where the changes are independent, while
   :math:`M \rho^2 \le m`.
3. *Which engine computes is nobody's business.* A pass that cannot serve is computed unit by unit,
   in passes of its shape beside nobody: the same numbers. Units that have no such pass fall back to
   the reference engine, clipped at the same aim (`precision.aim`).

Sums over passes are float64, or float32 where the rounding of that is at most a tenth of m
(`userdp.gradients.engines.running`). So the claim is worst-case in real arithmetic, and stands in
floating point on measured roundings, with m chosen to cover them; `reference` is the engine for
those who want the worst case throughout.

Every trainable parameter is covered: one that is used in a way without a rule is found by its
ordinary gradient. A unit that is too large for one pass, or whose norm cannot be formed in float32,
is computed by the reference engine alone.

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

from userdp.gradients.clipping import clip_factors, multiplicable
from userdp.gradients.draws import Draws, require_drawn, require_no_draws, watching_draws
from userdp.gradients.engines import reference
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form, Forms
from userdp.gradients.engines.own_bits import bits_are_own
from userdp.gradients.engines.passes import (
    Pass,
    formed_bytes,
    layout_of,
    most_units,
    passes,
    whole_bytes,
)
from userdp.gradients.engines.precision import (
    aim,
    is_narrow,
    reduced_products,
    require_no_masks,
)
from userdp.gradients.engines.replay import clipped_again
from userdp.gradients.engines.running import running_dtype
from userdp.gradients.engines.tape import NotCoveredError, Tape, Workspace
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.row_errors import may_be_of_rows
from userdp.gradients.sums import ClippedSum, Pending
from userdp.gradients.units import Units

LEAST_CLIP = 1e-8
"""Below this squares may vanish in float32, and the reference engine takes over."""


def sum_of_passes(task: Task, *, form: Forms = None, strict: bool = False) -> ClippedSum:
    """The clipped sum of a task whose units may share passes (`choice.why_alone`).

    A model that draws random numbers has each unit's masks drawn once: what a pass could not serve
    is computed again under the masks that it had there (`userdp.gradients.engines.replay`). Where
    it is not proved whose they are, the step stops (`draws.require_no_draws`).

    An accelerator computes while the host prepares what comes next. So where ``task.ahead`` no pass
    is waited for: the sum stands if, as hardly ever not, all units turn out to be usable, and is
    computed anew otherwise, from the same states of the generators (`ClippedSum.settle`).

    Args:
        task: what is to be computed.
        form: of linear layers; see `userdp.gradients.engines.forms.Forms`.
        strict: compute all units in passes, and raise where one cannot serve.

    Raises:
        NotCoveredError: names the parameters that no rule covers. No mask has been drawn that
            counts.
    """
    step = _Step(task, form, strict=strict)
    for one in step.passes:
        step.take(one)
    return step.finish()


def sum_apart(task: Task, *, form: Forms = None) -> ClippedSum:
    """The same numbers, each unit in a pass of its own, beside nobody; for models that draw none.

    A unit whose rows make the model or the loss raise an error counts as zero, and is counted
    (`engines.failing`). All others contribute, bit for bit, what they do in `sum_of_passes`.
    """
    step = _Step(task, form, forgiving=True)
    for one in step.passes:
        step.take_apart(one)
    return step.finish()


def cut(task: Task, form: Forms = None) -> tuple[list[Pass], list[int]]:
    """The passes, and the units too large for one; arguments as of `sum_of_passes`."""

    def most(rows: int, width: int) -> int:
        whole = form is Form.FORMED
        formed = whole_bytes(task) if whole else sum(formed_bytes(task, rows, width))
        places = most_units(task, formed)
        return places if task.places is None else min(places, task.places)

    draws = task.draws is not Draws.NONE
    return passes(task.units, micro_batch=task.micro_batch, most_units=most, filled=not draws)


class _Step:
    """What the passes of one sum share.

    Args:
        task: what is to be computed.
        form: of linear layers.
        strict: see `sum_of_passes`.
        forgiving: see `sum_apart`.
    """

    def __init__(
        self, task: Task, form: Forms, *, strict: bool = False, forgiving: bool = False
    ) -> None:
        self._task, self._form = task, form
        self._strict, self._forgiving = strict, forgiving
        self._drawn = task.draws
        if self._drawn is Draws.SHARED:
            raise NotCoveredError(["(random numbers that the rows of a pass share)"])
        self._expected = task.dtypes
        self._aimed = task.but(l2_clip_norm=aim(task))
        self._workspace = Workspace()
        self.passes, self._alone = cut(task, form)
        if not strict and any(map(is_narrow, self._expected)):
            self._leave_to_reference()

    @cached_property
    def _total(self) -> ClippedSum:
        """The sum: made when the first pass has run, so that no device waits for it."""
        taken = [len(one.numbers) for one in self.passes]
        return self._task.zero(running_dtype(self._task, taken))

    def _leave_to_reference(self) -> None:
        """Take units from passes in which their bits would not be their own."""
        own = {one.shape: bits_are_own(self._task, one.shape, self._form) for one in self.passes}
        self._alone += [n for one in self.passes if not own[one.shape] for n in one.numbers]
        self.passes = [one for one in self.passes if own[one.shape]]

    def take(self, one: Pass) -> None:
        """Add the units of a pass."""
        part, first = one.of(self._task.units), GeneratorStates.read()
        done = self._run(part)
        again = list(range(len(one.numbers)))
        if done is not None:
            again = self._add(one, done)
            del done  # what layers kept of this pass would lie beside the next one's activations
        if self._drawn is Draws.NONE:
            numbers = tuple(one.numbers[place] for place in again)
            if one.shape.units == 1:
                self._alone += numbers
            else:
                self.take_apart(Pass(numbers, one.shape))
            return
        last = GeneratorStates.read()
        for place in again:
            unit = clipped_again(self._aimed, part, place, first, last)
            self._total.add_unit(one.numbers[place], unit)

    def take_apart(self, one: Pass) -> None:
        """Add the units of a pass, each as it would be there, beside nobody else.

        Who made the pass of no use, those units are left to the reference engine; the others'
        numbers are the same as ever. So it is with a unit that is not finite beside others: a
        kernel that fills up a tile with what lies behind it, times 0, makes a NaN of an infinity
        there (a product in bfloat16 over an odd number of columns).
        """
        for alone in one.apart():
            try:
                done = self._run(alone.of(self._task.units))
            except Exception as error:  # whatever the model's and the loss's code raise
                if not (self._forgiving and may_be_of_rows(error)):
                    raise
                self._total.failed += 1
                for told in (self._total.norms, self._total.losses):
                    told[alone.numbers[0]] = torch.nan
                continue
            if done is None or self._add(alone, done):
                self._alone += alone.numbers

    def _run(self, part: Units) -> _Pass | None:
        """A pass over ``part``; None where it cannot serve its units."""
        task = self._task
        try:
            with watching_draws(self._drawn, len(part.lengths)):
                done = _Pass(task, part, self._workspace, self._form)
        except NotCoveredError as error:
            if self._strict:
                raise
            # Alone, a unit would see the masks that this pass drew, and whose these are is known
            # only of a pass that is proved: a coin for all may decide for a second user too.
            if not error.apart:
                require_no_draws(self._drawn, error.names)
            return None
        require_drawn(self._drawn, done.drew)
        if done.narrow <= self._expected:
            return done
        # These rows made the model compute in fewer bits than the margin is for. The margin must
        # not follow them, so their units are computed where none is needed.
        require_no_masks(self._drawn)
        return None

    def _add(self, one: Pass, done: _Pass) -> list[int]:
        """Add a pass that served; the places of units that it did not serve."""
        task, total, taken = self._task, self._total, len(one.numbers)
        if one.shape.units * one.shape.rows == 1:  # what such a pass read is not followed
            task.require_unchanged()
        aimed = self._aimed.l2_clip_norm
        factors, usable = done.clipped(aimed)
        losses, squares = done.losses[:taken], done.squared_norms[:taken]
        if task.ahead:
            total.pending.append(Pending.of(one.numbers, losses, squares, usable))
        else:
            done.leave_out(~usable)
        done.add_to(total.value, factors, taken)
        if task.ahead:
            return []
        numbers = list(one.numbers)
        total.losses[numbers] = losses.cpu()
        total.norms[numbers] = squares.sqrt().cpu()
        return [int(place) for place in (~usable[:taken]).nonzero()]

    def finish(self) -> ClippedSum:
        """The sum, with the units that are computed alone."""
        total, task = self._total, self._aimed
        del self._workspace  # before the sum takes more memory
        total.widen()
        for unit in self._alone:
            one = task.but(units=task.units.select(unit, unit + 1))
            total.add_unit(unit, reference.sum_of_units(one, forgiving=self._forgiving))
        return total


class _Pass:
    """One forward and backward pass over ``units``, and what it left.

    Args:
        task: of which the units are a part.
        units: of this pass.
        workspace: where per-unit gradients are put.
        form: of linear layers; see `userdp.gradients.engines.forms.Forms`.
    """

    def __init__(self, task: Task, units: Units, workspace: Workspace, form: Forms) -> None:
        self._task, self._units = task, layout_of(units)
        items = task.item_clip_norm
        layout = self._units if items is None else layout_of(units, by_row=True)
        if items is not None or reduced_products():
            # Reduced products would make the Gram matrices disagree with what is added.
            form = Form.FORMED
        self._tape = Tape(task.parameters, layout, workspace, form=form)
        self.losses, weights = self._tape.run(
            task.model, task.loss, units, owners=self._units, weighted=items is None
        )
        self.narrow = self._tape.narrow
        self.drew = self._tape.rows.drew
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
        self, total: Mapping[str, Tensor], factors: Mapping[str, Tensor], taken: int
    ) -> None:
        """Add the gradients of the first ``taken`` units, each times its factors."""
        units = len(self.squared_norms)
        if taken < units:
            counted = torch.arange(units, device=self.squared_norms.device) < taken
            factors = {name: each * counted for name, each in factors.items()}
        self._tape.add_to(total, factors)
