"""Passes over many units at once: the machinery of the book-keeping and LoRA engines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import reference
from userdp.gradients.clipping import clip_factors, multiplicable, require_clip_norm
from userdp.gradients.draws import Draws, draws_of, watching_draws
from userdp.gradients.engines.chunks import layout_of, passes, rows_per_pass
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.margins import aim, batches
from userdp.gradients.engines.precision import reduced_products, require_no_masks
from userdp.gradients.engines.replay import clipped_again
from userdp.gradients.engines.tape import Tape, Workspace
from userdp.gradients.held_state import HeldState
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.model_randomness import GeneratorStates, secretly
from userdp.gradients.models import (
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.vocabulary import require_count

LEAST_CLIP = 1e-8
"""Below this squares may vanish in float32, and the reference engine takes over."""

FORMED_BYTES = 256 << 20
"""Memory for per-unit gradients, unless four times the parameters are more."""


NOT_BY_ROWS = "(losses of which it is not proved that rows were kept apart)"


class NotCoveredError(Exception):
    """Parameters were used in a way that no rule covers, or rows not seen to be kept apart.

    Nothing was computed.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


@secretly
def one_pass_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None = None,
    micro_batch: int = 32,
    rule: ClipRule = FLAT,
    form: Form | None = None,
) -> ClippedSum:
    """The book-keeping engine's sum, without its fallback for uncovered parameters.

    A model that draws random numbers has each unit's masks drawn once: what a pass could not serve
    is computed again under the masks that it had there (`userdp.gradients.engines.replay`).

    Args:
        model: see `userdp.gradients.reference.clipped_sum`, as for all that follow.
        loss: per-row loss.
        units: the cohort.
        l2_clip_norm: C.
        item_clip_norm: the norm of each row, or None.
        micro_batch: most rows in one pass.
        rule: form and split of the unit's clip, see the reference.
        form: one form for all linear layers; None chooses by cost.

    Raises:
        NotCoveredError: names the parameters; or the model draws random numbers that the rows of a
            pass share. No mask has been drawn that counts.
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    if item_clip_norm is not None:
        require_clip_norm("item_clip_norm", item_clip_norm)
    require_count("micro_batch", micro_batch)
    require_uncoupled(model)
    parameters = trainable_parameters(model)
    if min(l2_clip_norm, item_clip_norm or l2_clip_norm) < LEAST_CLIP:
        raise NotCoveredError(["(clip norm too small for float32 squares)"])
    if not batches(model, loss, units):
        raise NotCoveredError(["(fewer bits than float32)"])
    drawn = draws_of(model, loss, units)
    if drawn is Draws.SHARED:
        raise NotCoveredError(["(random numbers that the rows of a pass share)"])
    held = HeldState(model, loss)
    sizes = {name: p.numel() for name, p in parameters.items()}
    total = {
        name: torch.zeros(p.shape, dtype=torch.float64, device=p.device)
        for name, p in parameters.items()
    }
    norms = torch.zeros(len(units), dtype=torch.float64)
    losses = torch.zeros(len(units), dtype=torch.float64)
    workspace = Workspace()
    clip = aim(model, loss, units, l2_clip_norm=l2_clip_norm)
    rows = rows_per_pass(units, micro_batch)
    non_finite = 0

    def add_alone(unit: int, exact: ClippedSum) -> None:
        nonlocal non_finite
        norms[unit], losses[unit] = exact.norms[0], exact.losses[0]
        non_finite += exact.non_finite
        for name, value in exact.value.items():
            total[name] += value

    alone: list[int] = []
    for begin, end in passes(
        units, rows=rows, most_units=most_units(parameters, item_clip_norm is not None)
    ):
        part = units.select(begin, end)
        count = int(part.offsets[-1])
        if count == 0:
            continue
        if count > micro_batch:
            alone += range(begin, end)
            continue
        first = GeneratorStates.read()
        try:
            with watching_draws(drawn, count):
                found = _Pass(model, loss, part, parameters, workspace, form, item_clip_norm)
        except NotCoveredError:
            if drawn is Draws.NONE:
                raise
            again = list(range(len(part)))
        else:
            if found.narrow:
                # These rows made the model compute in fewer bits than the margin is for. The margin
                # must not follow them, so their units are computed where none is needed.
                require_no_masks(drawn)
                alone += range(begin, end)
                continue
            losses[begin:end] = found.losses
            squares = found.squared_norms
            factors = rule.factors(found.squares_by_name, sizes, l2_clip_norm=clip)
            usable = squares.isfinite() & multiplicable(factors.values())
            norms[begin:end] = squares.sqrt().cpu()
            found.add_to(total, factors, usable)
            again = [int(unit) for unit in (~usable).nonzero()]
        if drawn is Draws.NONE:
            alone += [begin + unit for unit in again]
            continue
        last = GeneratorStates.read()
        for unit in again:
            exact = clipped_again(
                model,
                loss,
                part,
                unit,
                first,
                last,
                l2_clip_norm=clip,
                item_clip_norm=item_clip_norm,
                rule=rule,
            )
            add_alone(begin + unit, exact)
    for unit in alone:
        exact = reference.clipped_sum(
            model,
            loss,
            units.select(unit, unit + 1),
            l2_clip_norm=clip,
            item_clip_norm=item_clip_norm,
            micro_batch=micro_batch,
            rule=rule,
        )
        add_alone(unit, exact)
    held.require_unchanged()
    return ClippedSum(
        value=total,
        norms=norms,
        losses=losses,
        non_finite=non_finite,
        sensitivity=float(l2_clip_norm),
    )


class _Pass:
    """One forward and backward pass over ``units``, and what it left."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        units: Units,
        parameters: dict[str, nn.Parameter],
        workspace: Workspace,
        form: Form | None,
        item_clip_norm: float | None,
    ) -> None:
        self._item = item_clip_norm
        self._units = layout_of(units)
        two_stage = item_clip_norm is not None
        layout = layout_of(units, by_row=True) if two_stage else self._units
        if two_stage or reduced_products():
            # Reduced products would make the Gram matrices disagree with what is added.
            form = Form.FORMED
        self._tape = Tape(parameters, layout, workspace, form=form)
        width = int(units.lengths.max())
        counts = units.offsets.diff().to(units.lengths.device)[self._units.unit_of_row]
        targets = None if units.targets is None else units.targets[:, :width]
        input_ids = units.input_ids[:, :width]
        with (
            torch.enable_grad(),
            self._tape.watching(model, input_ids, units.lengths, targets),
        ):
            losses = row_losses(loss, model, input_ids, units.lengths, targets)
            _require_rows(losses, layout.rows)
            proved = self._tape.rows.prove(losses)
            weights = (1 / counts.double()).to(losses.dtype)
            weighted = losses if two_stage else losses * weights
            uncovered = self._tape.gradients(weighted.sum())
        if uncovered or not proved:
            raise NotCoveredError([*uncovered, *([] if proved else [NOT_BY_ROWS])])
        self.narrow = self._tape.narrow
        mean = losses.detach().double() * weights.double()
        self.losses = torch.zeros(self._units.units, dtype=torch.float64)
        self.losses.index_add_(0, self._units.unit_of_row.cpu(), mean.cpu())
        self._weights = weights.double()
        with torch.no_grad():
            if item_clip_norm is not None:
                self._clip_items(item_clip_norm)
            self.squares_by_name = self._tape.squares_by_name()
            self.squared_norms = torch.stack(list(self.squares_by_name.values())).sum(0)

    def _clip_items(self, item_clip_norm: float) -> None:
        """Replace the rows' gradients by each unit's mean of clipped ones."""
        squares = self._tape.squared_norms()
        factors = clip_factors(squares.cpu(), l2_clip_norm=item_clip_norm).to(squares.device)
        factors = torch.where(squares.isfinite() & multiplicable([factors]), factors, torch.nan)
        mix = torch.zeros(
            self._units.units, self._units.rows, dtype=torch.float64, device=squares.device
        )
        places = torch.arange(self._units.rows, device=squares.device)
        mix[self._units.unit_of_row, places] = factors * self._weights
        self._tape = self._tape.mixed(mix, self._units)

    def add_to(self, total: dict[str, Tensor], factors: dict[str, Tensor], usable: Tensor) -> None:
        """Add the units' gradients times their factors; those not ``usable`` leave nothing."""
        if not bool(usable.all()):
            self._tape.drop(~usable)
        self._tape.add_to(total, factors)


def _require_rows(losses: Tensor, rows: int) -> None:
    if losses.shape != (rows,):
        raise UseError(
            f"the loss must return one number per row, shape ({rows},), got "
            f"{tuple(losses.shape)}: a loss averaged over the batch makes one user's gradient "
            "depend on the others"
        )
    if not losses.requires_grad:
        raise UseError(
            "the loss does not depend on any trainable parameter, so its gradient is nothing",
            hint="do not detach the loss, nor compute it under torch.no_grad()",
        )


def most_units(parameters: dict[str, nn.Parameter], per_row: bool) -> int:
    """Units in a pass, so that their gradients fit even if all are formed."""
    size = sum(p.numel() * max(4, p.element_size()) for p in parameters.values())
    budget = max(FORMED_BYTES, 4 * size)
    return max(1, budget // size // (4 if per_row else 1))
