"""`Subject`: what a run is about to compute with, and made-up units to try it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from userdp.clip import Clip
from userdp.gradients import ClippedSum, ClipRule, Engine, Loss, Units, trainable_parameters
from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.certificate.made_up import CANNOT_RUN, Shape, made_up
from userdp.gradients.losses import row_losses
from userdp.gradients.noise import Noise
from userdp.gradients.precision import dtypes_of, is_narrow
from userdp.gradients.shards import is_sharded, let_go
from userdp.noise import Gaussian, NoiseLaw
from userdp.out_of_memory import ran_out_of_memory
from userdp.sampling import Sampling
from userdp.training.checks.oracle import Squares, squares_of
from userdp.training.distributed import World

_RAGGED = Shape((2, 1, 3), (5, 8, 4, 7, 3, 6))
_LONG = 48
"""Tokens of the one unit that is much longer than all others, where model and store allow it."""
_TRIED, _WIDTH = 16, 8
"""Rows of which the one with the largest loss is taken; tokens of each."""


@dataclass(frozen=True, kw_only=True)  # no slots, for the cached properties
class Subject:
    """What is checked; equal on all processes.

    Args:
        model: with the weights that training begins with, in the mode in which it trains.
        loss: per-row loss.
        masked: whether the loss is given targets.
        engine: what clips and sums.
        clip: of the plan.
        sampling: of the plan.
        law: of the plan's noise.
        noise_std: the absolute standard deviation of the noise of a step.
        noise: makes a new source of noise, as the run's own is made.
        coins: makes a new secret generator for the sampling, as the run's own is made: the same on
            all processes.
        known_noise: whether the source has a known seed, so that each new one begins as the first.
        micro_batch: most rows in one pass.
        longest: most tokens of a row.
        world: the processes.
        more: further made-up units to try it on.
    """

    model: nn.Module
    loss: Loss
    masked: bool
    engine: Engine
    clip: Clip
    sampling: Sampling
    law: NoiseLaw
    noise_std: float
    noise: Callable[[], Noise]
    coins: Callable[[], np.random.Generator]
    known_noise: bool = False
    micro_batch: int = 32
    longest: int = _LONG
    world: World
    more: Units | None = None

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The trainable parameters, by name."""
        return trainable_parameters(self.model)

    @property
    def scattered(self) -> bool:
        """Whether this process holds a part of each trainable parameter."""
        return any(map(is_sharded, self.parameters.values()))

    @property
    def in_shares(self) -> bool:
        """Whether each process draws the noise of its own share of sums that all have whole."""
        return self.world.size > 1 and not self.scattered and isinstance(self.law, Gaussian)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(iter(self.parameters.values())).device

    @property
    def rule(self) -> ClipRule:
        """How each unit's gradient is bounded."""
        clip = self.clip
        return ClipRule(form=clip.form, stability=clip.stability, layer_split=clip.split)

    @cached_property
    def narrow(self) -> bool:
        """Whether anything is computed in fewer bits than float32."""
        with let_go(self.model):
            return any(map(is_narrow, dtypes_of(self.model, self.loss, masked=self.masked)))

    @property
    def close(self) -> float:
        """How far two ways to one gradient may be apart, relative.

        Float32 rounds a gradient to 1e-5 and better; bfloat16 to some percents, where another
        kernel is taken for another shape.
        """
        return 0.06 if self.narrow else 1e-3

    @cached_property
    def units(self) -> Units:
        """Ragged units of one row and of several; the last but one is the longest.

        The last one is the row, of some, that the model finds least likely: its gradient is the
        largest that is easy to find. Where the loss allows it, one unit has no target.
        """
        ragged = self._rows(_RAGGED.rows, _RAGGED.lengths)
        empty = self._rows((1,), (2,))
        empty = replace(empty, lengths=torch.ones_like(empty.lengths))
        allowed = self._losses(empty) is not None
        long = self._rows((1,), (max(2, min(self.longest, _LONG)),))
        given = [] if self.more is None else [self.more]
        return _joined([ragged, *given, *([empty] if allowed else []), long, self._hardest()])

    @cached_property
    def squares(self) -> list[Squares] | None:
        """Of each unit's gradient, by parameter; None where the model cannot run these units."""
        try:
            with evaluating(self.model):
                return [squares_of(self, self.units.select(n, n + 1)) for n in range(len(self))]
        except CANNOT_RUN as error:
            if ran_out_of_memory(error):
                raise
            return None

    @property
    def norms(self) -> list[float] | None:
        """Of each unit's gradient in evaluation mode, by plain autograd."""
        squares = self.squares
        return None if squares is None else [sum(one.values()) ** 0.5 for one in squares]

    @property
    def biting(self) -> float | None:
        """A clip norm that all units exceed, except those without a gradient; None: there is none.

        Nothing can be told of a model whose gradients are all zero or not finite.
        """
        norms = self.norms
        if norms is None or not all(0 <= norm < 1e15 for norm in norms):
            return None
        least = min((norm for norm in norms if norm > 1e-6), default=0.0) / 2
        return least if least > 1e-7 else None

    def __len__(self) -> int:
        """How many units there are."""
        return len(self.units)

    def sum_of(self, units: Units, l2_clip_norm: float, loss: Loss | None = None) -> ClippedSum:
        """The engine's clipped sum, values on the host; of a scattered sum this process's part.

        A sharded model's processes compute together: the first one has all units, the others none,
        and all know the norms.
        """
        together = self.model_is_sharded
        mine = units.select(0, len(units) if self.world.rank == 0 or not together else 0)
        total = self.engine(
            self.model,
            self.loss if loss is None else loss,
            mine,
            l2_clip_norm=l2_clip_norm,
            item_clip_norm=self.clip.item_norm,
            micro_batch=self.micro_batch,
            rule=self.rule,
            parts=self.world.size,
        )
        if together:
            known = self.world.broadcast_object((total.norms, total.non_finite))
            total.norms, total.non_finite = known
            if not self.scattered:  # adapters: the sum is on the first process
                self.world.broadcast(total.value)
        total.value = {name: value.cpu() for name, value in total.value.items()}
        return total

    @cached_property
    def model_is_sharded(self) -> bool:
        """Whether each process holds a part of the model, frozen parameters included."""
        return any(map(is_sharded, self.model.parameters()))

    def squared(self, value: Mapping[str, Tensor]) -> dict[str, float]:
        """The squared norm of each parameter's part of a sum, all processes' parts together."""
        own = {name: float(v.double().square().sum()) for name, v in value.items()}
        if not self.scattered:
            return own
        every = self.world.all_gather_object(own)
        return {name: sum(one[name] for one in every) for name in own}

    def _rows(self, rows: tuple[int, ...], lengths: tuple[int, ...]) -> Units:
        most = tuple(min(length, max(2, self.longest)) for length in lengths)
        shape = Shape(rows, most)
        return made_up(self.model, shape, masked=self.masked, device=self.device)

    def _losses(self, units: Units) -> Tensor | None:
        """The loss of each row; None where the code does not run such rows, or gives no number."""
        try:
            with torch.no_grad(), evaluating(self.model), let_go(self.model):
                losses = row_losses(
                    self.loss, self.model, units.input_ids, units.lengths, units.targets
                )
        except CANNOT_RUN as error:
            if ran_out_of_memory(error):
                raise
            return None
        return losses if bool(losses.isfinite().all()) else None

    def _hardest(self) -> Units:
        tried = self._rows((1,) * _TRIED, (_WIDTH,) * _TRIED)
        losses = self._losses(tried)
        hardest = 0 if losses is None else int(losses.argmax())
        return tried.select(hardest, hardest + 1)


def _joined(parts: list[Units]) -> Units:
    """Several units as one cohort, padded to the longest row."""
    width = max(part.input_ids.shape[1] for part in parts)

    def wide(rows: Tensor) -> Tensor:
        return nn.functional.pad(rows, (0, width - rows.shape[1]))

    targets = [part.targets for part in parts if part.targets is not None]
    counts = torch.cat([part.offsets.diff() for part in parts])
    return Units(
        input_ids=torch.cat([wide(part.input_ids) for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), counts]).cumsum(0),
        targets=torch.cat([wide(one) for one in targets]) if targets else None,
    )


def without(units: Units, unit: int) -> Units:
    """All units but one."""
    parts = [units.select(0, unit), units.select(unit + 1, len(units))]
    return _joined(parts)
