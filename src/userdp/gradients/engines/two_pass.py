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

The clip aims at C(1 - m) as the book-keeping engine does, and the same argument holds
(`engines.bookkeeping`): norms and gradients are computed by different operations, and one pass's
sum over units and processes is float32; sums over passes are float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.gradients.clipping import require_clip_norm, squared_norm
from userdp.gradients.draws import Draws, draws_of, watching_draws
from userdp.gradients.engines.chunks import layout_of, passes
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.margins import aim
from userdp.gradients.engines.norm_pass import norms_of, weighted_losses
from userdp.gradients.engines.one_pass import LEAST_CLIP, NotCoveredError, _Pass, most_units
from userdp.gradients.engines.replay import made_up_but, require_same_states
from userdp.gradients.engines.tape import Workspace
from userdp.gradients.losses import Loss
from userdp.gradients.model_randomness import GeneratorStates, known_randomness, secretly
from userdp.gradients.models import (
    buffer_versions,
    require_same_buffers,
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.rules import FLAT, ClipRule
from userdp.gradients.shards import is_sharded, local, reshard, shapes_of
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.guarantees import require_count

_CLOSE = 0.01
_agreed: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Loss, bool]] = WeakKeyDictionary()


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
        model, loss, l2_clip_norm=l2_clip_norm, item_clip_norm=item_clip_norm, rule=rule
    )
    parameters = trainable_parameters(model)
    two = _all_sharded(parameters)
    drawn = _draws(model, loss, parameters)
    buffers = buffer_versions(model)
    clip = aim(model, loss, units, l2_clip_norm=l2_clip_norm)
    total = shapes_of(parameters)
    norms = torch.zeros(len(units), dtype=torch.float64)
    losses = torch.zeros(len(units), dtype=torch.float64)
    sizes = {name: p.numel() for name, p in parameters.items()}
    mine = [
        part
        for part in passes(
            units,
            rows=micro_batch,
            most_units=most_units(parameters, item_clip_norm is not None),
        )
        if int(units.offsets[part[1]]) > int(units.offsets[part[0]])
    ]
    workspace, non_finite = Workspace(), 0
    made_up = _made_up(model, units)
    for number in range(_most(len(mine), units.lengths.device)):
        counts = number < len(mine)
        begin, end = mine[number] if counts else (0, len(made_up))
        part = units.select(begin, end) if counts else made_up
        first, watched = GeneratorStates.read(), watching_draws(drawn, len(part.lengths))
        try:
            if two:
                with watched:
                    squares, part_losses = norms_of(model, loss, part, parameters, workspace)
                last = GeneratorStates.read()
                factors = rule.factors({"": squares}, {"": sum(sizes.values())}, l2_clip_norm=clip)[
                    ""
                ]
                first.load()
                _add_weighted(
                    model, loss, part, parameters, factors if counts else None, total, drawn=drawn
                )
                require_same_states(last)
            else:
                with watched:
                    found = _Pass(
                        model, loss, part, parameters, workspace, Form.FORMED, item_clip_norm
                    )
                squares, part_losses = found.squared_norms, found.losses
                by_name = rule.factors(found.squares_by_name, sizes, l2_clip_norm=clip)
                if counts:
                    found.add_to(total, by_name, squares.isfinite())
        except NotCoveredError as error:
            raise _not_covered(error.names) from None
        if counts:
            norms[begin:end], losses[begin:end] = squares.sqrt().cpu(), part_losses
            non_finite += int((~squares.isfinite()).sum())
    require_same_buffers(model, buffers)
    return ClippedSum(
        value=total,
        norms=norms,
        losses=losses,
        non_finite=non_finite,
        sensitivity=float(l2_clip_norm),
    )


@secretly
def require_supported(
    model: nn.Module,
    loss: Loss,
    *,
    l2_clip_norm: float,
    item_clip_norm: float | None,
    rule: ClipRule,
) -> None:
    """Refuse what `clipped_sum` cannot do, before anything is charged; a collective.

    Its arguments and errors are those of `clipped_sum`. Reads no data; clears ``.grad``.
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
    _draws(model, loss, parameters)
    _require_agreement(model, loss, parameters, two=two)


def _draws(model: nn.Module, loss: Loss, parameters: Mapping[str, nn.Parameter]) -> Draws:
    """What the model draws, told on made-up rows; a collective where it is not known yet."""
    nobody = Units.from_rows([]).to(next(iter(parameters.values())).device)
    with known_randomness("made-up rows"):  # every process finds the same
        drawn = draws_of(model, loss, _made_up(model, nobody, rows=(1, 1, 1)))
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
            factors, units = None, _made_up(model, units)
    layout = layout_of(units)
    with torch.enable_grad():
        losses, weights = weighted_losses(model, loss, units, layout)
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


def _made_up(model: nn.Module, like: Units, rows: tuple[int, ...] = (1,)) -> Units:
    """Rows that are nobody's: units of so many rows each, on the device of ``like``."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    tokens = int(getattr(embeddings, "num_embeddings", 2))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(tokens, (sum(rows), 6), generator=generator)
    return Units(
        input_ids=ids,
        lengths=torch.tensor([6 - n % 3 for n in range(sum(rows))]),
        offsets=torch.tensor([0, *rows]).cumsum(0),
        targets=None if like.targets is None else torch.ones(ids.shape, dtype=torch.bool),
    ).to(like.lengths.device)


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
    model: nn.Module, loss: Loss, parameters: Mapping[str, nn.Parameter], *, two: bool
) -> None:
    """Whether both passes agree on made-up rows; asked once for each model and loss.

    Raises:
        UseError: a layer has no rule, or mixes rows.
        FailureError: norms and gradients differ.
    """
    known = _agreed.setdefault(model, WeakKeyDictionary())
    if loss in known:
        return
    device = next(iter(parameters.values())).device
    nobody = Units.from_rows([]).to(device)
    probe = _made_up(model, nobody, rows=(2, 1))
    aim(model, loss, probe, l2_clip_norm=1.0)  # it looks into the model once, all together here
    reshard(model)
    if not two:
        known[loss] = True
        return
    with known_randomness("made-up rows"):  # the same masks on every process
        states = GeneratorStates.read()
        try:
            squares, _ = norms_of(model, loss, probe, parameters, Workspace())
        except NotCoveredError as error:
            raise _not_covered(error.names) from None
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
    known[loss] = True


def _not_covered(names: list[str]) -> UseError:
    return UseError(
        f"no per-unit rule covers the use of {', '.join(names[:3])}, and a sharded model has no "
        "reference engine to fall back to",
        hint="freeze them, train adapters, or train on one process",
    )
