"""What a step really used, held against the plan before it is charged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from userdp.clip import FARTHEST
from userdp.noise.gaussian import KNOWN_SAMPLERS, NoiseSampler
from userdp.plans.plan import Plan
from userdp.sampling import Sampling


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
