"""`Plan`: the mechanism of a private run and its price, fixed before any private look."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Self

from userdp.accounting.accountants import Accountant, calibrate, epsilon_by
from userdp.accounting.bracket import ideal_delta_for, implemented_epsilon
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.core.codec import decode, digest, encode
from userdp.core.errors import UseError
from userdp.core.files import read_json, write_json
from userdp.core.vocabulary import (
    Guarantee,
    PrivacyUnit,
    require_count,
    require_delta,
    require_positive,
)
from userdp.noise import Gaussian
from userdp.noise.clip_forms import FARTHEST, Clip, ClipForm
from userdp.noise.gaussian import KNOWN_SAMPLERS, NoiseSampler, sum_noise_multiplier
from userdp.plans.provenance import MadeFor, Origin
from userdp.sampling import Sampling


class Saved:
    """A dataclass that is a JSON file of its own; see `userdp.core.codec`."""

    what: ClassVar[str]
    """The content of the file, for messages."""

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal values only."""
        return digest(self)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        write_json(Path(path), encode(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read one; `UseError` if the file is none."""
        return decode(cls, read_json(Path(path), what=f"a {cls.what}"), what=f"the {cls.what}")


PROPOSAL_SCHEMA = "userdp.proposal/2"
"""Of the file that `userdp plan` writes (`userdp.plans.proposal`), which holds a plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The (ε, δ) that a plan may spend.

    Args:
        target_delta: δ, in (0, 1).
        target_epsilon: the ε for which the noise was chosen, if it was; > 0.
    """

    target_delta: float
    target_epsilon: float | None = None

    def __post_init__(self) -> None:
        require_delta(self.target_delta)
        if self.target_epsilon is not None:
            require_positive("epsilon", self.target_epsilon)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Saved):
    """The mechanism of a private run, fixed before any private look.

    Guarantee: `steps` steps of ``sampling``, each with sensitivity ``clip.l2_norm`` per drawn unit
    and noise of standard deviation ``noise_std``, satisfy `guarantee()`. No field may derive from
    the private data's own counts: ``population`` is declared by the operator (the same constant on
    neighbouring data sets) or was released under DP; ``origins`` says which.

    Args:
        sampling: how each step draws its units.
        clip: how each drawn unit's gradient is bounded.
        noise: σ, as accounted.
        steps: T, noisy updates released.
        population: the declared nominal number of units: of users, or of examples after the cap of
            G per user.
        budget: the target δ, and the ε that the noise was chosen for, if it was.
        accountant: prices the plan. ``group-privacy`` and ``group-privacy-vadhan`` make it
            Group Privacy (Chua et al. 2024, Algorithm 1): the steps of ELS, accounted for single
            examples and lifted to a user's G by a lemma, with more noise at the same ε.
        origins: of the constants that were not declared, by the field's name.
        made_for: the store and the model for which it was chosen; None for any.

    Raises:
        ValueError: a field is out of its range (NaN included), or fits no other.
    """

    schema: ClassVar[str] = "userdp.plan/7"
    what: ClassVar[str] = "plan"

    sampling: Sampling
    clip: Clip
    noise: Gaussian
    steps: int
    population: int
    budget: Budget
    accountant: Accountant = Accountant.CONTOUR
    # Not part of the hash, since a mapping has none; equality and the digest see it.
    origins: Mapping[str, Origin] = field(default_factory=dict, hash=False)
    made_for: MadeFor | None = None

    def __post_init__(self) -> None:
        require_count("steps", self.steps)
        require_count("population", self.population)
        require_positive("the denominator", self.denominator)
        assert math.isfinite(self.sum_noise_multiplier)
        object.__setattr__(self, "origins", MappingProxyType(dict(self.origins)))
        priced = self.mechanism if self.sampling.covered else None  # refuses what has no price
        lifted = self.accountant.lifts and not self.sampling.by_user and isinstance(priced, Mixture)
        if not (lifted or self.accountant is Accountant.CONTOUR):
            raise UseError(
                f"a plan with sampling {self.sampling.kind} cannot claim by the accountant "
                f"{self.accountant}",
                hint="group privacy lifts example-level sampling: sample examples",
            )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The plan in a file that `userdp plan` or `save` wrote; `UseError` if the file is none."""
        values = read_json(Path(path), what="a plan")
        plan = values.get("plan") if values.get("schema") == PROPOSAL_SCHEMA else values
        return decode(cls, plan, what=f"the plan in {path}")

    def calibrated(self) -> Self:
        """This plan with the least noise for its budget; the search starts at the noise it has.

        Raises:
            UseError: it has no target ε, or no noise is enough.
        """
        target = self.budget.target_epsilon
        if target is None:
            raise UseError("a plan without a target_epsilon has no budget to choose its noise by")
        calibrated = calibrate(
            self.mechanism,
            target_epsilon=target,
            target_delta=ideal_delta_for(target, self.budget.target_delta, steps=self.steps),
            accountant=self.accountant,
        )
        return replace(self, noise=Gaussian(multiplier=calibrated.noise_multiplier))

    @property
    def mechanism(self) -> NoisySteps:
        """The mechanism that the accountant prices, built from the same constants as the sampler.

        Raises:
            UseError: the sampling has no price.
        """
        return self.sampling.price(self.noise.multiplier, self.steps)

    @property
    def algorithm(self) -> str:
        """``"ULS"`` or ``"ELS"``, as in Charles et al. 2024; ``"GP"`` is Group Privacy."""
        return "GP" if self.accountant.lifts else self.sampling.algorithm

    @property
    def denominator(self) -> float:
        """The divisor of the noisy sum: units expected of the *declared* population."""
        return self.sampling.expected_units(self.population)

    @property
    def count_noise_std(self) -> float | None:
        """σ_b, the noise on the count of unclipped units; None where the clip norm is fixed."""
        if self.clip.adaptation is None:
            return None
        return self.clip.adaptation.count_noise(
            noise_multiplier=self.noise.multiplier, denominator=self.denominator
        )

    @property
    def sum_noise_multiplier(self) -> float:
        """The noise on the clipped sum divided by its clip norm.

        It is ``noise.multiplier``; or, beside the count of adaptive clipping, more.
        """
        count_noise_std = self.count_noise_std
        if count_noise_std is None:
            return self.noise.multiplier
        return sum_noise_multiplier(
            noise_multiplier=self.noise.multiplier, count_noise_std=count_noise_std
        )

    def noise_std_at(self, l2_clip_norm: float) -> float:
        """Standard deviation of the noise on a sum clipped to this norm, in gradient units."""
        return self.sum_noise_multiplier * l2_clip_norm

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the clipped sum: σ·C, in gradient units.

        With an adapting clip norm, that of the first step.
        """
        return self.noise_std_at(self.clip.l2_norm)

    @property
    def clipping(self) -> str | None:
        """Options of clipping in words; None where clipping is the papers' own."""
        words = []
        if self.clip.form is not ClipForm.THRESHOLD:
            words.append(str(self.clip.form))
        if self.clip.split is not None:
            words.append(f"by layer ({self.clip.split})")
        if self.clip.adaptation is not None:
            words.append(
                f"adaptive (quantile {self.clip.adaptation.quantile:g}, count noise "
                f"{self.count_noise_std:.4g}, sum noise {self.sum_noise_multiplier:.6g})"
            )
        return ", ".join(words) or None

    def guarantee(
        self,
        steps: int | None = None,
        *,
        delta: float | None = None,
        void: bool = False,
        accountant: Accountant | None = None,
    ) -> Guarantee:
        """The claim of this plan after ``steps`` steps.

        Args:
            steps: attempted steps; all of the plan's by default.
            delta: in (0, 1); ``budget.target_delta`` by default.
            void: a fact outside the plan (a known seed) broke the claim.
            accountant: another than the plan's, for a second opinion.

        Returns:
            The claim of the steps as they run: the cut tails of their noise are part of δ
            (`userdp.accounting.bracket`); its grid is measured, not priced
            (docs/why/mechanism.md). ``epsilon`` is infinite where the claim is void, where the
            accounting does not cover the sampling, or where the tails are more than ``delta``
            allows.
        """
        steps = self.steps if steps is None else require_count("steps", steps, at_least=0)
        delta = self.budget.target_delta if delta is None else require_delta(delta)
        if void or not self.sampling.covered:
            epsilon, answered = math.inf, "none"
        elif steps == 0:
            epsilon, answered = 0.0, "none"
        else:
            asked = self.accountant if accountant is None else accountant
            ideal = partial(epsilon_by, asked, self.mechanism.with_steps(steps))
            bracket = implemented_epsilon(ideal, delta, steps=steps)
            epsilon, answered = bracket.upper, bracket.accountant
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            unit=PrivacyUnit.USER,
            adjacency=self.sampling.adjacency,
            sampling=self.sampling.kind,
            accountant=answered,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """The constants that one step really used, read off the sampler and the noise, not the plan.

    With adaptive clipping ``l2_clip_norm`` is a function of earlier DP releases, so that it may
    stand in a shareable ledger.

    Args:
        sampling: of the sampler.
        l2_clip_norm: of this step.
        noise_std: of the noise on the clipped sum.
        noise_sampler: draws that noise.
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
        """The record that a step of this plan must have; at the step's clip norm where it adapts.

        A plan allows every known sampler of noise: all have one price.
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
