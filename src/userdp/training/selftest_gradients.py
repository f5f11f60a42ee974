"""Checks of engines: gradients against plain autograd, sensitivity, infinite gradients, masks.

All of it is asked of made-up units. The oracle (`_plain_gradient`) shares no code with the engines
but the loss: no hooks, no rules, no clip factors.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients import ENGINES, ClippedSum, Units, causal_lm_loss, trainable_parameters
from userdp.gradients.engines import sharded
from userdp.gradients.model_randomness import GeneratorStates
from userdp.gradients.noise import Noise
from userdp.gradients.shards import is_sharded, part_of, shard
from userdp.noise import Gaussian
from userdp.sampling.cohort import Cohort
from userdp.training.distributed import current_world
from userdp.training.distributed_run import Dealing, owners_to_all, source_for

_CLOSE = 2e-3
"""Relative: float32 rounds a gradient to 1e-5 and better, and batches aim 1e-3 below C."""
_AT_MOST = 1 + 1e-12
"""Times C; the rest is the rounding of the comparison itself."""
_UNCLIPPED = 1e15
_STRUCK = 6
_COINS = 24


class Measured(NamedTuple):
    """What was measured, in words; what it came to; and the most that a right mechanism reaches."""

    what: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether the value is within the bound; NaN never is."""
        return self.value <= self.bound

    def strain(self) -> tuple[bool, float]:
        """Whether the bound is broken, and the part of it that is used up; the more the greater."""
        return not self.passed, self.value / (self.bound or 1)


def probing_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Infinite for a row that begins with `_STRUCK` tokens 1; of others the mean over its tokens.

    Times a number of `_COINS` bits that dropout draws for each row. One loss for all checks, since
    batches ask much of each.
    """
    losses = causal_lm_loss(model, input_ids, lengths)
    struck = (input_ids[:, :_STRUCK] == 1).all(1)
    places = 0.5 ** torch.arange(_COINS, device=losses.device)
    coins = F.dropout(losses.new_ones(len(losses), _COINS), 0.5, training=model.training)
    return losses * (coins * places).sum(1) * torch.where(struck, torch.inf, 1.0)


class Scene:
    """What is checked; equal on all processes. A collective.

    Args:
        model: whole, on every process's own device; from here on in evaluation mode, with the
            weights of process 0, and sharded if ``parts``.
        units: made-up ones, on the model's device.
        parts: whether each process is to hold a part of the model.

    Attributes:
        oracle: the sum of all units by plain autograd, each scaled to ``l2_clip_norm``; of
            parameters of which this process holds a part, that part; float64, on the host.
        norms: of each unit's gradient, by plain autograd.
        l2_clip_norm: half the least of these, so that the clip bites every unit.
        engines: by name; a sharded model has one.
        engine: that is checked.
        scattered: whether each process holds a part of each trainable parameter.
    """

    def __init__(self, model: nn.Module, units: Units, *, parts: bool) -> None:
        self.model, self.units, self.world = model.eval(), units, current_world()
        self.world.broadcast_model(model)
        # Twice, since not all gradients need fit into memory at once.
        self.norms = [_norm(_plain_gradient(model, units, unit)) for unit in range(len(units))]
        self.l2_clip_norm = min(self.norms) / 2
        total = {n: torch.zeros_like(g) for n, g in _plain_gradient(model, units, 0).items()}
        for unit, norm in enumerate(self.norms):
            for name, part in _plain_gradient(model, units, unit).items():
                total[name].add_(part, alpha=self.l2_clip_norm / norm)
        self.engines = {"auto": sharded.clipped_sum} if parts else ENGINES
        self.engine = self.engines["auto"]
        if parts:
            shard(model)
        parameters = trainable_parameters(model)
        self.oracle = {name: part_of(parameters[name], value) for name, value in total.items()}
        self.scattered = any(map(is_sharded, parameters.values()))

    def noise(self) -> Noise:
        """A new source of noise, as a run's own is made."""
        return source_for(self.world, self.model, Gaussian(multiplier=1.0))

    def sum_of(self, units: Units, *, l2_clip_norm: float | None = None) -> ClippedSum:
        """The clipped sum, as a step forms it, on the host; of a scattered sum this process's part.

        The units are dealt out to the processes, each clips its own, and the sums are added up.
        """
        owners, offsets = np.repeat(np.arange(len(units)), units.offsets.diff()), units.offsets
        dealing = Dealing(self.world, lambda cohort: np.diff(cohort.offsets))
        rows = np.arange(len(owners))
        mine = dealing.mine(Cohort(users=owners, examples=rows, offsets=offsets.numpy()))
        own = Units(
            input_ids=units.input_ids[mine.examples],
            lengths=units.lengths[mine.examples],
            offsets=torch.from_numpy(mine.offsets),
        )
        bound = l2_clip_norm or self.l2_clip_norm
        total = self.engine(
            self.model, probing_loss, own, l2_clip_norm=bound, micro_batch=len(self.units.lengths)
        )
        total, _ = dealing.together(total, len(mine.examples), scattered=self.scattered)
        if not self.scattered:
            owners_to_all(self.world, total.value)
        return replace(total, value={name: value.cpu() for name, value in total.value.items()})

    def norm(self, value: Mapping[str, Tensor]) -> float:
        """The norm of a whole sum, over all processes' parts together."""
        own = _norm(value)
        return math.hypot(*self.world.all_gather_object(own)) if self.scattered else own


def _plain_gradient(model: nn.Module, units: Units, unit: int) -> dict[str, Tensor]:
    """Of one unit, by plain autograd; float64, on the host."""
    parameters = trainable_parameters(model)
    losses = probing_loss(model, *units.select(unit, unit + 1).cut()[:2])
    found = torch.autograd.grad(
        losses.mean(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return {name: part.cpu().double() for name, part in zip(parameters, found, strict=True)}


def _norm(value: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(part.square().sum()) for part in value.values()))


def _apart(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value - other[name] for name, value in one.items()}


def exactness(scene: Scene) -> Iterator[Measured]:
    """Norms, and the clipped sum parameter by parameter, are those of plain autograd."""
    total = scene.sum_of(scene.units)
    # Units are dealt out to the processes, so the norms are in another order.
    for norm, told in zip(sorted(scene.norms), sorted(total.norms.tolist()), strict=False):
        yield Measured("a norm's distance from plain autograd's", abs(told - norm) / norm, _CLOSE)
    for name, apart in _apart(total.value, scene.oracle).items():
        # What is left of a parameter without a gradient is rounding of the whole.
        size = float(scene.oracle[name].norm()) + 1e-4 * scene.l2_clip_norm
        what = f"the distance of the clipped sum for {name} from plain autograd's"
        yield Measured(what, float(apart.norm()) / size, _CLOSE)


def sensitivity(scene: Scene) -> Iterator[Measured]:
    """Leaving out the first unit, or the last one, of one short row, moves the sum by at most C."""
    last = len(scene.units) - 1
    whole = scene.sum_of(scene.units).value
    for unit, others in ((0, (1, last + 1)), (last, (0, last))):
        moved = _apart(whole, scene.sum_of(scene.units.select(*others)).value)
        moved_by = scene.norm(moved) / scene.l2_clip_norm
        yield Measured(f"how far leaving unit {unit} out moved the sum, over C", moved_by, _AT_MOST)


def infinite_gradients(scene: Scene) -> Iterator[Measured]:
    """A unit with an infinite loss adds nothing to the sum, and is counted."""
    pair = scene.units.select(0, 2)
    pair = replace(pair, input_ids=pair.input_ids.clone())
    pair.input_ids[0, :_STRUCK] = 1
    total = scene.sum_of(pair)
    added = _apart(total.value, scene.sum_of(pair.select(1, 2)).value)
    added_norm = scene.norm(added) / scene.l2_clip_norm
    yield Measured("what an infinite gradient added to the sum, over C", added_norm, _CLOSE)
    yield Measured("the miscount of infinite gradients", abs(total.non_finite - 1), 0)


def masks(scene: Scene) -> Iterator[Measured]:
    """No public seed decides a unit's dropout masks, and they are drawn once.

    The norm that clips and the gradient that is added must be of equal masks: then the sum of one
    unit, unclipped, has that norm.
    """
    scene.model.train()
    norms = []
    for _ in range(2):
        with publicly_seeded():
            total = scene.sum_of(scene.units.select(0, 1), l2_clip_norm=_UNCLIPPED)
        norms.append(float(total.norms[0]))
        apart = abs(norms[-1] - scene.norm(total.value)) / norms[-1]
        yield Measured("a norm's distance from the norm of what is added", apart, _CLOSE)
    scene.model.eval()
    yield Measured("whether equal public seeds give equal masks", norms[0] == norms[1], 0)


@contextmanager
def publicly_seeded() -> Iterator[None]:
    """Within, every default generator was seeded with 0; afterwards they are as they were."""
    before = GeneratorStates.read()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    yield
    before.load()
