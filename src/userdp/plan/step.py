"""What one step really used, to be held against the plan before it is charged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from userdp.adaptive import FARTHEST
from userdp.guarantees import Sampling
from userdp.noise_law import KNOWN_SAMPLERS, NoiseSampler
from userdp.plan.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """What one step really used, as read off the sampler and the noise, not off the plan.

    With adaptive clipping ``l2_clip_norm`` is a function of earlier DP releases, so that it may
    stand in a shareable ledger.
    """

    sampling: Sampling
    sampling_probability: float
    group_size: int
    l2_clip_norm: float
    noise_std: float
    count_noise_std: float | None = None
    noise_sampler: NoiseSampler = NoiseSampler.HOST

    @classmethod
    def of_plan(
        cls,
        plan: Plan,
        *,
        l2_clip_norm: float | None = None,
        noise_sampler: NoiseSampler = NoiseSampler.HOST,
    ) -> Self:
        """What a step of this plan has to be; at its own clip norm where that adapts.

        A plan allows any of the samplers: all have one price.
        """
        clip = plan.l2_clip_norm
        if plan.adaptive is not None and l2_clip_norm is not None:
            least, most = clip / FARTHEST, clip * FARTHEST
            clip = l2_clip_norm if least <= l2_clip_norm <= most else clip
        return cls(
            sampling=plan.realised_sampling,
            sampling_probability=plan.sampling_probability,
            group_size=plan.group_size,
            l2_clip_norm=clip,
            noise_std=plan.noise_std_at(clip),
            count_noise_std=plan.count_noise_std,
            noise_sampler=(noise_sampler if noise_sampler in KNOWN_SAMPLERS else NoiseSampler.HOST),
        )
