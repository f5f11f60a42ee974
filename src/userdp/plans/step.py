"""What a step really used, held against the plan before it is charged; what the first ones cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from userdp.clip import FARTHEST
from userdp.errors import UserdpError
from userdp.noise.gaussian import KNOWN_SAMPLERS, NoiseSampler
from userdp.plans.plan import Plan
from userdp.sampling import Sampling
from userdp.vocabulary import require_count, round_up

_PARTS = 20
"""A plan is priced at so many places at most, since a price may take a second to compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What one step really used, as read off the sampler and the noise, not off the plan.

    With adaptive clipping ``l2_clip_norm`` is a function of earlier DP releases, so that it may
    stand in a shareable ledger.

    Args:
        sampling: what the sampler draws by.
        l2_clip_norm: of this step.
        noise_std: of the noise on the clipped sum.
        noise_sampler: what draws that noise.
        count_noise_std: of the noise on the count of unclipped units, if it is released.
    """

    sampling: Sampling
    l2_clip_norm: float
    noise_std: float
    noise_sampler: NoiseSampler = NoiseSampler.HOST
    count_noise_std: float | None = None

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        *,
        l2_clip_norm: float | None = None,
        noise_sampler: NoiseSampler = NoiseSampler.HOST,
    ) -> Self:
        """What a step of this plan has to be; at its own clip norm where that adapts.

        A plan allows any of the samplers of noise that it knows: all have one price.
        """
        clip = plan.clip.l2_norm
        if plan.clip.adaptation is not None and l2_clip_norm is not None:
            least, most = clip / FARTHEST, clip * FARTHEST
            clip = l2_clip_norm if least <= l2_clip_norm <= most else clip
        return cls(
            sampling=plan.sampling,
            l2_clip_norm=clip,
            noise_std=plan.noise_std_at(clip),
            noise_sampler=noise_sampler if noise_sampler in KNOWN_SAMPLERS else NoiseSampler.HOST,
            count_noise_std=plan.count_noise_std,
        )


class Spent:
    """The ε of the first steps of a plan, cheaply enough to be shown beside them; no claim.

    A run reserves its whole plan before its first step, and claims the whole plan until it has
    finished. What an interrupted run is said to have cost (`Claim.so_far`) is priced at its very
    number of steps, once, and may therefore be less.

    Guarantee: `epsilon` is an upper bound, never below what the plan's accountant says of so many
    steps or of the whole plan, whichever is less: between two places that it prices it tells the
    price of the later one.

    Args:
        plan: whose sampling is covered by an accountant.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._every = -(-plan.steps // _PARTS)
        self._prices: dict[int, float] = {}

    @cached_property
    def reserved(self) -> float:
        """ε of the whole plan."""
        return self._plan.guarantee().epsilon

    def epsilon(self, attempted: int) -> float:
        """ε of the first ``attempted`` steps, from 0 to all of the plan's."""
        require_count("attempted", attempted, at_least=0, at_most=self._plan.steps)
        later = min(self._plan.steps, -(-attempted // self._every) * self._every)
        if later == self._plan.steps:
            return self.reserved
        if later not in self._prices:
            self._prices[later] = self._plan.guarantee(later).epsilon
        # The accountant's own margin may put fewer steps a last digit above all of them.
        return min(self._prices[later], self.reserved)

    def words(self, attempted: int) -> str:
        """The same in words that nobody takes for a claim; none where there is no price.

        What is only shown must not end the run that it is shown of.
        """
        try:
            spent, reserved = self.epsilon(attempted), self.reserved
        except UserdpError:
            return ""
        if not math.isfinite(reserved):
            return ""
        return f"epsilon at most {round_up(spent)} of {round_up(reserved)} reserved"
