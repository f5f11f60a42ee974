r"""Many units in one backward pass, each clipped as if alone: the book-keeping and LoRA engines.

**What is guaranteed, and how.**

1. *Each unit's contribution has norm at most C(1 - m)*, m = `precision.margin`. Where a layer's
   per-unit gradients are formed, the norm is taken of the very numbers that are added: worst case,
   the rounding of blocks of squares (6.1e-5) and of the weighted sum over a pass. Where the norm
   comes from Gram matrices it is formed by other operations than the sum. It is too small by at
   most 1e-6, in the worst case (`gram_error`: float64, and a bounded condition, else gradients are
   formed). The sum is a float32 product: on rows made to be worst (constant, so that all roundings
   go one way, and of the largest condition) it was 2.2e-4 too long; measured, not proven.
2. *What other units contribute does not depend on a unit's presence, up to rounding.* In a batch,
   shapes and places decide how the processor orders its additions; so does the longest row, to
   which the others are padded (padding itself contributes exact zeros). Take away one unit, and
   each other contribution may change in its last bits, by a relative rho; rho is about 1e-6 in
   float32 and 1e-15 in float64. On rows made to be worst, whose positions nearly cancel, it is up
   to 6e-5 in float32: by who shares the pass a layer forms gradients or takes Gram matrices, and
   the sum of the latter was that much shorter. (In fewer bits it is too much, and there are no
   batches: `engines.precision`.) The reference engine has no such term: there a unit's bits are its
   own. Here the margin covers the worst case, all M changes in one direction, while :math:`M \rho
   \le m`: M up to 1,000 in float32, 17 where everybody's rows are worst; and with high probability,
   the changes being independent and in no common direction with the unit itself, while :math:`M
   \rho^2 \le m`: 3e5 at the larger rho.
3. *Which engine computes is nobody's business.* A unit, or a whole cohort, that falls back to the
   reference engine is clipped at the same aim (`precision.aim`), so that who is in the cohort
   cannot rescale the others.

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

import torch
from torch import Tensor

from userdp.gradients.clipping import clip_factors, multiplicable
from userdp.gradients.draws import Draws, draws_of, watching_draws
from userdp.gradients.engines import reference
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form, Forms
from userdp.gradients.engines.passes import (
    formed_bytes,
    layout_of,
    most_units,
    passes,
    rows_per_pass,
    whole_bytes,
)
from userdp.gradients.engines.precision import aim, reduced_products, require_no_masks
from userdp.gradients.engines.replay import clipped_again
from userdp.gradients.engines.running import running_dtype
from userdp.gradients.engines.tape import NotCoveredError, Tape, Workspace
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.sums import ClippedSum, Pending
from userdp.gradients.units import Units

LEAST_CLIP = 1e-8
"""Below this squares may vanish in float32, and the reference engine takes over."""


def sum_of_passes(task: Task, *, form: Forms = None) -> ClippedSum:
    """The clipped sum of a task whose units may share passes (`choice.why_alone`).

    A model that draws random numbers has each unit's masks drawn once: what a pass could not serve
    is computed again under the masks that it had there (`userdp.gradients.engines.replay`).

    An accelerator computes while the host prepares what comes next. So where ``task.ahead`` no pass
    is waited for: the sum stands if, as hardly ever not, all units turn out to be usable, and is
    computed anew otherwise, from the same states of the generators (`ClippedSum.settle`).

    Args:
        task: what is to be computed.
        form: of linear layers; see `userdp.gradients.engines.forms.Forms`.

    Raises:
        NotCoveredError: names the parameters that no rule covers. No mask has been drawn that
            counts.
    """
    drawn = draws_of(task.model, task.loss, task.units)
    if drawn is Draws.SHARED:
        raise NotCoveredError(["(random numbers that the rows of a pass share)"])
    ranges, workspace = cut(task, form), Workspace()
    total = task.zero(running_dtype(task, ranges))
    aimed = task.but(l2_clip_norm=aim(task))
    alone: list[int] = []
    for begin, end in ranges:
        part = task.units.select(begin, end)
        count = int(part.offsets[-1])
        if count == 0:
            continue
        if count > task.micro_batch:
            alone += range(begin, end)
            continue
        first = GeneratorStates.read()
        try:
            with watching_draws(drawn, count):
                done = _Pass(task, part, workspace, form)
        except NotCoveredError:
            if drawn is Draws.NONE:
                raise
            again = list(range(len(part)))
        else:
            if done.narrow:
                del done
                # These rows made the model compute in fewer bits than the margin is for. The margin
                # must not follow them, so their units are computed where none is needed.
                require_no_masks(drawn)
                alone += range(begin, end)
                continue
            if count == 1:  # what such a pass read is not followed
                task.require_unchanged()
            usable = done.add_to(total.value, aimed.l2_clip_norm, wait=not task.ahead)
            if task.ahead:
                told = Pending(begin, end, done.losses, done.squared_norms, usable)
                total.pending.append(told)
                del done
                continue
            total.losses[begin:end] = done.losses
            total.norms[begin:end] = done.squared_norms.sqrt().cpu()
            again = [int(unit) for unit in (~usable).nonzero()]
            del done  # what layers kept of this pass would lie beside the next one's activations
        if drawn is Draws.NONE:
            alone += [begin + unit for unit in again]
            continue
        last = GeneratorStates.read()
        for unit in again:
            total.add_unit(begin + unit, clipped_again(aimed, part, unit, first, last))
    del workspace  # before the sum takes more memory
    total.widen()
    for unit in alone:
        one = aimed.but(units=task.units.select(unit, unit + 1))
        total.add_unit(unit, reference.sum_of_units(one))
    return total


def cut(task: Task, form: Forms = None) -> list[tuple[int, int]]:
    """The ranges of units that share a pass; arguments as of `sum_of_passes`."""
    rows = rows_per_pass(task.units, task.micro_batch)
    formed = whole_bytes(task) if form is Form.FORMED else sum(formed_bytes(task))
    most = most_units(task, formed)
    return passes(task.units, rows=rows, most_units=most)


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

    def add_to(self, total: Mapping[str, Tensor], aim: float, *, wait: bool) -> Tensor:
        """Add the units' gradients, clipped to ``aim``; returns which ones: bool, (units,).

        Of a unit whose norm is not finite, or which is too far over the clip norm, nothing is
        added. Without ``wait`` the host does not ask whether there is one, and if there is, the sum
        is worth nothing.
        """
        factors = self._task.rule.factors(self._squares, self._task.sizes, l2_clip_norm=aim)
        usable = self.squared_norms.isfinite() & multiplicable(factors.values())
        if wait and not bool(usable.all()):
            self._tape.drop(~usable)
        self._tape.add_to(total, factors)
        return usable
