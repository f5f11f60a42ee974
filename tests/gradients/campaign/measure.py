"""By how much one unit moves a clipped sum, over C, and which way its cohort was computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.gradients.campaign.masks import Masks
from tests.gradients.tiny import distance
from userdp.gradients import ClippedSum, Engine, Units, get_engine
from userdp.gradients.engines import sharded
from userdp.gradients.shards import shard

Sum = Callable[[Units], ClippedSum]


@dataclass(frozen=True, kw_only=True, slots=True)
class Influence:
    """What one cohort showed.

    Attributes:
        ratio: the greatest ‖S(D) - S(D∖u)‖ / C over the units u that were left out.
        together: units of D that were computed in a pass with other units' rows.
    """

    ratio: float
    together: int

    @property
    def way(self) -> str:
        """ "certified" where units shared passes, else "reference"."""
        return "certified" if self.together > 1 else "reference"


def influence(
    clipped: Sum, units: Units, *, clip: float, out: Iterable[int], vocabulary: int
) -> Influence:
    """Compare the sums with and without each of some units, all others having equal masks.

    Args:
        clipped: the engine; it may draw.
        units: D; each row of two tokens and more has a first token that is its own, and not 0.
        clip: C.
        out: which units to leave out, one at a time.
        vocabulary: rows of the model's token table.
    """
    clipped(units)  # asks of the model what is asked once
    with Masks(vocabulary) as masks:
        everybody = clipped(units)
    moves = [0.0]
    for unit in out:
        others = without(units, unit)
        if masks.noted:
            # Asked within the recorder, passes over made-up rows would be taken for the cohort's,
            # since both begin from the same states of the generators.
            clipped(others)
            with Masks(vocabulary, masks.noted):
                rest = clipped(others)
        else:
            rest = clipped(others)
        moves.append(distance(everybody, rest) / clip)
    return Influence(ratio=max(moves), together=_together(units, masks))


def without(units: Units, unit: int) -> Units:
    """All units but one."""
    begin, end = int(units.offsets[unit]), int(units.offsets[unit + 1])
    kept = [row for row in range(len(units.lengths)) if not begin <= row < end]
    sizes = [int(size) for n, size in enumerate(units.offsets.diff()) if n != unit]
    return Units(
        input_ids=units.input_ids[kept],
        lengths=units.lengths[kept],
        offsets=torch.tensor([0, *sizes]).cumsum(0),
        targets=None if units.targets is None else units.targets[kept],
    )


def _together(units: Units, masks: Masks) -> int:
    """How many units' last passes held other units' rows too."""
    owners = torch.repeat_interleave(units.offsets.diff()).tolist()
    first = units.input_ids[:, 0].tolist() if units.input_ids.shape[1] else []
    rows = zip(first, owners, units.lengths.tolist(), strict=True) if first else ()
    unit_of = {row: unit for row, unit, tokens in rows if tokens > 1}
    shared = {
        unit_of[row]
        for row, beside in masks.beside.items()
        if row in unit_of
        and any(unit_of.get(other, unit_of[row]) != unit_of[row] for other in beside)
    }
    return len(shared)


def biting_clip(norms: Tensor, share: float = 0.5) -> float:
    """A clip norm that some units exceed and some do not: a share of the median norm."""
    usual = norms[norms.isfinite() & (norms > 0)]
    return share * float(usual.median()) if len(usual) else share


def engine_of(name: str) -> Engine:
    """The engine of that name; ``sharded`` runs over this one process."""
    return sharded.clipped_sum if name == "sharded" else get_engine(name)


def prepared(model: nn.Module, engine: str) -> nn.Module:
    """The model as the engine wants it."""
    if engine != "sharded":
        return model
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return shard(model)
