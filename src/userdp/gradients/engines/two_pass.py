r"""Engines for models that no single process holds: all processes in step, pass for pass.

A sharded layer is gathered by all processes together, so all must run the same number of passes:
who has fewer units goes through the motions with a made-up row that counts nothing.

**All parameters sharded: two passes.** The first runs forward and backward with layers whose
parameters count as constants; each hands over its units' squared norms (`norm_pass.NormTape`), so
that no parameter's gradient is formed for more than a layer at a time, and none is reduced. The
second is the ordinary backward pass of :math:`\sum_u c_u \ell_u` with the clip factors :math:`c_u`
of the first; FSDP2 scatters its sum. What the two passes compute is compared once per model, on
made-up rows (`_require_agreement`). Dropout masks are drawn in the first pass; the second begins
from the generators' states of the first, with as many rows of the same lengths, and must end where
the first did: the norm and the gradient of a unit are of the same masks.

**Frozen parameters sharded: one pass** over adapters, as in `engines.lora`.

**Fewer bits than float32** (`engines.margins` says why they are not for batches). Adapters are then
computed one unit a pass. Where both passes are needed the model is refused: in bfloat16 they differ
by more than the margin can cover.

The clip aims at C(1 - m) as the book-keeping engine does, and the same argument holds
(`engines.bookkeeping`): norms and gradients are computed by different operations, and one pass's
sum over units and processes is float32; sums over passes are float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.gradients.clipping import multiplicable, require_clip_norm, squared_norm
from userdp.gradients.coupling import require_rows_apart
from userdp.gradients.draws import Draws, draws_of, watching_draws
from userdp.gradients.engines.chunks import layout_of, passes
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.margins import batches, margin
from userdp.gradients.engines.norm_pass import cut, norms_of, weighted_losses
from userdp.gradients.engines.one_pass import LEAST_CLIP, NotCoveredError, _Pass, most_units
from userdp.gradients.engines.precision import dtypes_of, is_narrow, require_no_masks
from userdp.gradients.engines.replay import made_up_but, require_same_states
from userdp.gradients.engines.tape import Workspace
from userdp.gradients.held_state import HeldState
from userdp.gradients.losses import Loss
from userdp.gradients.made_up import RAGGED, Shape, made_up
from userdp.gradients.model_randomness import GeneratorStates, known_randomness, secretly
from userdp.gradients.models import (
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.shards import is_sharded, local, reshard, shapes_of
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.vocabulary import require_count

_CLOSE = 0.01

_NARROW_MARGIN = 1e-2
"""For a unit alone in two passes that its own rows made narrow; measured, not proven."""

_agreed: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Loss, set[bool]]] = WeakKeyDictionary()


@secretly
def clipped_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None = None,
    micro_batch: int = 32,
    rule: ClipRule = FLAT,
) -> ClippedSum:
    """This process's part in the clipped sum of all processes' units; a collective.

    Guarantee: that of the module's docstring. ``value`` holds, where the trainable parameters are
    sharded, this process's part of *everybody's* sum; where they are not, the sum of *this
    process's* units, as other engines do. A unit whose norm is not finite in float32 adds zero.

    Args:
        model: sharded by `userdp.gradients.shards.shard`. Its ``.grad`` are cleared.
        loss: per-row loss.
        units: this process's.
        l2_clip_norm: C; at least 1e-8.
        item_clip_norm: with adapters alone.
        micro_batch: most rows in one pass, but for a larger unit: it has a pass of its own.
        rule: form of the unit's clip; its split over layers with adapters alone.

    Raises:
        UseError: what is asked for needs per-unit gradients of sharded parameters, or a layer has
            no rule, or the model draws random numbers that the rows of a pass share.
        FailureError: the second pass drew other numbers than the first.
    """
    require_count("micro_batch", micro_batch)
    require_supported(
        model,
        loss,
        l2_clip_norm=l2_clip_norm,
        item_clip_norm=item_clip_norm,
        rule=rule,
        masked=units.targets is not None,
    )
    parameters = trainable_parameters(model)
    held = HeldState(model, loss)
    found = ClippedSum(
        value=shapes_of(parameters),
        norms=torch.zeros(len(units), dtype=torch.float64),
        losses=torch.zeros(len(units), dtype=torch.float64),
        non_finite=0,
        sensitivity=float(l2_clip_norm),
    )
    step = _Step(model, loss, units, found, l2_clip_norm, item_clip_norm, rule)
    rows = micro_batch if batches(model, loss, units) else 1
    most = most_units(parameters, item_clip_norm is not None)
    mine = [
        part
        for part in passes(units, rows=rows, most_units=most)
        if int(units.offsets[part[1]]) > int(units.offsets[part[0]])
    ]
    later: list[tuple[int, int]] = []
    counts = units.offsets.diff()
    for number in range(_most(len(mine), units.lengths.device)):
        part = mine[number] if number < len(mine) else None
        if not step.take(part) and part is not None:
            later += [(unit, unit + 1) for unit in range(*part) if int(counts[unit])]
    for number in range(_most(len(later), units.lengths.device)):
        step.take(later[number] if number < len(later) else None, alone=True)
    held.require_unchanged()
    return replace(found, non_finite=step.non_finite)


class _Step:
    """What the passes of one clipped sum share."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        units: Units,
        found: ClippedSum,
        l2_clip_norm: float,
        item_clip_norm: float | None,
        rule: ClipRule,
    ) -> None:
        self._model, self._loss, self._units, self._found = model, loss, units, found
        self._l2_clip_norm, self._item, self._rule = l2_clip_norm, item_clip_norm, rule
        self._parameters = trainable_parameters(model)
        self._sizes = {name: p.numel() for name, p in self._parameters.items()}
        self._two = _all_sharded(self._parameters)
        self._known = dtypes_of(model, loss, units)
        self._drawn = _draws(model, loss, self._parameters, masked=units.targets is not None)
        wide = {p.dtype for p in self._parameters.values() if not is_narrow(p.dtype)}
        self._margin = margin(wide or {torch.float32})
        self._nobody = _nobody(model, masked=units.targets is not None)
        self._workspace = Workspace()
        self.non_finite = 0

    def take(self, part: tuple[int, int] | None, *, alone: bool = False) -> bool:
        """Add one pass's units to the sum; a collective.

        **Precision.** Rows may make the model compute in fewer bits than the margin is for. Their
        own aim must not move the others', so a pass in which any process saw that adds nothing, on
        any process, and its units come again one by one: then each unit's bits and aim are its own.

        Args:
            part: a range of units; None goes through the motions.
            alone: the part is one unit.

        Returns:
            Whether its units were added; False asks for them one by one.
        """
        begin, end = part or (0, len(self._nobody))
        units = self._nobody if part is None else self._units.select(begin, end)
        first = GeneratorStates.read()
        try:
            one_pass: _Pass | None = None
            with watching_draws(self._drawn, len(units.lengths)):
                if self._two:
                    squares, losses, narrow = norms_of(
                        self._model, self._loss, units, self._parameters, self._workspace
                    )
                else:
                    one_pass = _Pass(
                        self._model,
                        self._loss,
                        units,
                        self._parameters,
                        self._workspace,
                        Form.FORMED,
                        self._item,
                    )
                    squares, losses = one_pass.squared_norms, one_pass.losses
                    narrow = one_pass.narrow
        except NotCoveredError as error:
            raise _not_covered(error.names) from None
        seen = self._known if part is None else self._known | narrow
        if not alone and _most(int(seen != self._known), squares.device):
            require_no_masks(self._drawn)
            return False
        least = _NARROW_MARGIN if self._two and any(map(is_narrow, seen)) else self._margin
        clip = self._l2_clip_norm * (1 - least)
        if one_pass is None:
            flat = {"": squares}, {"": sum(self._sizes.values())}
            factors = self._rule.factors(*flat, l2_clip_norm=clip)[""]
            factors = torch.where(multiplicable([factors]), factors, torch.zeros_like(factors))
            last = GeneratorStates.read()
            first.load()
            _add_weighted(
                self._model,
                self._loss,
                units,
                self._parameters,
                None if part is None else factors,
                self._found.value,
                drawn=self._drawn,
            )
            require_same_states(last)
        elif part is not None:
            by_name = self._rule.factors(one_pass.squares_by_name, self._sizes, l2_clip_norm=clip)
            usable = squares.isfinite() & multiplicable(by_name.values())
            one_pass.add_to(self._found.value, by_name, usable)
        if part is not None:
            self._found.norms[begin:end] = squares.sqrt().cpu()
            self._found.losses[begin:end] = losses
            self.non_finite += int((~squares.isfinite()).sum())
        return True


@secretly
def require_supported(
    model: nn.Module,
    loss: Loss,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None,
    rule: ClipRule,
    masked: bool = False,
) -> None:
    """Refuse what `clipped_sum` cannot do, before anything is charged; a collective.

    Its arguments and errors are those of `clipped_sum`; ``masked`` says whether the loss will be
    given targets. Reads no data; clears ``.grad``.
    """
    require_clip_norm("l2_clip_norm", l2_clip_norm)
    require_uncoupled(model)
    reshard(model)  # a forward pass without a backward one leaves some parameters gathered
    parameters = trainable_parameters(model)
    two = _all_sharded(parameters)
    if two:  # gradients arrive there
        for parameter in parameters.values():
            parameter.grad = None
    _require_possible(model, rule, two, l2_clip_norm, item_clip_norm)
    wide = batches(model, loss, _nobody(model, masked=masked))  # looks once, all together here
    reshard(model)
    if two and not wide:
        raise UseError(
            "a sharded model computes here in fewer bits than float32: the pass that takes the "
            "norms and the one that adds up would differ by more than the margin of the clip",
            hint="use --precision float32, train adapters (--lora-rank), or do not shard",
        )
    _draws(model, loss, parameters, masked=masked)
    _require_agreement(model, loss, parameters, two=two, masked=masked)


def _draws(
    model: nn.Module, loss: Loss, parameters: Mapping[str, nn.Parameter], *, masked: bool
) -> Draws:
    """What the model draws, told on made-up rows; a collective where it is not known yet."""
    with known_randomness("made-up rows"):  # every process finds the same
        drawn = draws_of(model, loss, _nobody(model, masked=masked))
    reshard(model)
    if drawn is Draws.SHARED:
        raise UseError(
            "the model draws random numbers that all rows of a pass share (a coin that skips a "
            "layer, dropout of positions or weights): who else is there would decide with whom a "
            "user shares them, and a sharded model has no engine that computes users alone",
            hint="set that dropout to 0, or train on one process",
        )
    return drawn


def _add_weighted(
    model: nn.Module,
    loss: Loss,
    units: Units,
    parameters: Mapping[str, nn.Parameter],
    factors: Tensor | None,
    total: Mapping[str, Tensor],
    *,
    drawn: Draws,
) -> None:
    """The second pass: add everybody's units, each times its factor; None: of no factor here.

    Units of factor 0 are left out: they may not be finite. Where the model draws, made-up tokens
    stand in their places, so that all others see their masks again.
    """
    if factors is not None and drawn is not Draws.NONE:
        owner = layout_of(units).unit_of_row
        units = made_up_but(units, (factors > 0).to(owner.device)[owner])
    elif factors is not None:
        good = (factors > 0).nonzero().flatten().cpu()
        factors = factors[good.to(factors.device)]
        units = _only(units, good)
        if not len(units.lengths):
            factors, units = None, _nobody(model, masked=units.targets is not None)
    layout = layout_of(units)
    with torch.enable_grad():
        losses, weights = weighted_losses(model, loss, cut(units), layout)
        each = torch.zeros_like(weights)
        if factors is not None:
            each = weights * factors[layout.unit_of_row].to(weights.dtype)
        torch.autograd.backward((losses * each).sum())
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            total[name].add_(local(parameter.grad))
            parameter.grad = None


def _only(units: Units, kept: Tensor) -> Units:
    """Some of the units."""
    parts = [units.select(int(unit), int(unit) + 1) for unit in kept] or [units.select(0, 0)]
    sizes = torch.tensor([0, *(len(part.lengths) for part in parts)])
    targets = [part.targets for part in parts if part.targets is not None]
    return Units(
        input_ids=torch.cat([part.input_ids for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        offsets=sizes.cumsum(0),
        targets=torch.cat(targets) if targets else None,
    )


def _nobody(model: nn.Module, *, masked: bool) -> Units:
    """A made-up unit of one row, on the device of the model."""
    device = next(iter(trainable_parameters(model).values())).device
    return made_up(model, Shape((1,), (6,)), masked=masked, device=device)


def _most(count: int, device: torch.device) -> int:
    """The largest of everybody's counts."""
    counts = torch.tensor([count], device=device)
    dist.all_reduce(counts, op=dist.ReduceOp.MAX)
    return int(counts)


def _all_sharded(parameters: Mapping[str, nn.Parameter]) -> bool:
    sharded = {is_sharded(p) for p in parameters.values()}
    if len(sharded) > 1:
        raise UseError(
            "some trainable parameters are sharded and some are not",
            hint="shard with userdp.gradients.shards.shard, after the adapters are attached",
        )
    return sharded == {True}


def _require_possible(
    model: nn.Module, rule: ClipRule, two: bool, l2_clip_norm: float, item_clip_norm: float | None
) -> None:
    if min(l2_clip_norm, item_clip_norm or l2_clip_norm) < LEAST_CLIP:
        raise UseError(f"a sharded model clips to at least {LEAST_CLIP:g}, got {l2_clip_norm!r}")
    if two and (item_clip_norm is not None or rule.layer_split is not None):
        raise UseError(
            "item_clip_norm and layer_split need each unit's gradient, which a sharded model "
            "never forms",
            hint="train adapters (--lora-rank), or leave them out",
        )


def _require_agreement(
    model: nn.Module,
    loss: Loss,
    parameters: Mapping[str, nn.Parameter],
    *,
    two: bool,
    masked: bool,
) -> None:
    """Whether both passes agree on made-up rows; once for each model, loss, and use of a mask.

    Raises:
        UseError: a layer has no rule, rows are not seen to be kept apart, or the loss couples them.
        FailureError: norms and gradients differ.
    """
    known = _agreed.setdefault(model, WeakKeyDictionary()).setdefault(loss, set())
    if masked in known:
        return
    device = next(iter(parameters.values())).device
    require_rows_apart(model, loss, masked=masked, gradients=False)
    reshard(model)
    probes = [made_up(model, shape, masked=masked, device=device) for shape in RAGGED]
    with known_randomness("made-up rows"):  # the same masks on every process
        for probe in probes:
            try:
                if two:
                    _require_same_norms(model, loss, probe, parameters)
                else:
                    _Pass(model, loss, probe, dict(parameters), Workspace(), Form.FORMED, None)
            except NotCoveredError as error:
                raise _not_covered(error.names) from None
    known.add(masked)


def _require_same_norms(
    model: nn.Module, loss: Loss, probe: Units, parameters: Mapping[str, nn.Parameter]
) -> None:
    device = probe.lengths.device
    states = GeneratorStates.read()
    squares, _, _ = norms_of(model, loss, probe, parameters, Workspace())
    for unit in range(len(probe)):
        total = shapes_of(parameters)
        alone = torch.zeros(len(probe), dtype=torch.float64, device=device)
        alone[unit] = 1
        states.load()
        _add_weighted(model, loss, probe, parameters, alone, total, drawn=Draws.PER_ROW)
        square = torch.tensor(squared_norm(total.values()), device=device)
        dist.all_reduce(square)
        # Every process added the same rows.
        norm = float(square.sqrt()) / dist.get_world_size()
        if not abs(norm - float(squares[unit].sqrt())) <= _CLOSE * norm:
            raise FailureError(
                f"the two passes disagree on made-up rows: norm {float(squares[unit].sqrt())}, "
                f"gradient {norm}; clipping would not hold for this model",
                hint="train it on one process, where the reference engine can take over",
            )


def _not_covered(names: list[str]) -> UseError:
    return UseError(
        f"no per-unit rule covers the use of {', '.join(names[:3])}, and a sharded model has no "
        "reference engine to fall back to",
        hint="freeze them, train adapters, or train on one process",
    )
