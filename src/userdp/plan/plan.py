"""`Plan`: what a private run will do, and what it will cost, fixed before any private look."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Self

from userdp.accounting.accountants import Accountant, calibrate_by, epsilon_by
from userdp.accounting.bracket import Bracket
from userdp.accounting.calibration import calibrate_fixed_graph
from userdp.accounting.implemented import ideal_delta_for, implemented_epsilon
from userdp.accounting.mechanisms import (
    FixedGraphExamples,
    PoissonExamples,
    PoissonUsers,
    SampledMechanism,
)
from userdp.adaptive import AdaptiveClipping, sum_noise_multiplier
from userdp.errors import UseError
from userdp.guarantees import (
    Adjacency,
    ClipForm,
    Guarantee,
    LayerSplit,
    PrivacyUnit,
    Sampling,
    require_count,
    require_delta,
    require_positive,
    require_probability,
)
from userdp.json_files import read_json, write_json

_SCHEMAS = "userdp.plan/"
SCHEMA = f"{_SCHEMAS}4"
_SINCE = {
    "clip_form": 2,
    "clip_stability": 2,
    "layer_split": 2,
    "adaptive": 2,
    "accountant": 3,
    "adjacency": 4,
}
"""The first schema that knows a field; 1 knows all others."""
_GROUP_PRIVACY = (Accountant.GROUP_PRIVACY, Accountant.GROUP_PRIVACY_VADHAN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a private run will do, fixed before any private look.

    Guarantee: `steps` steps of the sampler built from this plan, each with sensitivity
    ``l2_clip_norm`` per drawn unit and noise of standard deviation ``noise_std``, satisfy
    `guarantee()`. No field may derive from the private data's own counts: ``population`` is
    declared by the operator (the same constant on neighbouring data sets) or was released under DP.

    Args:
        sampling: ``users`` (ULS, Charles et al. 2024, Algorithm 2) or ``examples`` (ELS,
            Algorithm 1).
        steps: T, noisy updates released.
        group_size: G, most examples of a user that a step (ULS) or the training set (ELS) uses.
        sampling_probability: q (users) or p (examples), in (0, 1].
        noise_multiplier: σ, as accounted; the noise's standard deviation divided by
            ``l2_clip_norm`` (with ``adaptive``, see `sum_noise_multiplier`).
        l2_clip_norm: C, in gradient units; with ``adaptive``, of the first step.
        population: the declared nominal number of users (ULS) or of examples after the cap of G
            per user (ELS).
        target_delta: δ, in (0, 1).
        target_epsilon: the budget σ was calibrated to, if it was.
        item_clip_norm: clips each example of a unit before the unit, if given.
        unsafe_shuffle: draw shuffled batches in place of Poisson samples. No ε is claimed then.
        clip_form: what clipping does to a unit's gradient.
        clip_stability: γ of ``automatic`` clipping, in gradient units; says nothing otherwise.
        layer_split: clip each layer to its share of C, if given.
        adaptive: the clip norm follows a quantile of the norms, if given; the count it needs is
            part of what ``noise_multiplier`` accounts for (`userdp.adaptive`).
        accountant: who prices the plan. ``group-privacy`` and ``group-privacy-vadhan`` make it
            Group Privacy (Chua et al. 2024, Algorithm 1): the steps of ELS, accounted for single
            examples and lifted to a user's G by a lemma, with more noise at the same ε.
        adjacency: ``add-or-remove``, or ``fixed-graph`` (ELS alone) for records of several owners
            that were bounded by ``userdp prepare --owners greedy``: then G bounds what a user
            owns, whoever holds it (`userdp.accounting.mechanisms.fixed_graph`).

    Raises:
        ValueError: a field is out of its range (NaN included).
    """

    sampling: Sampling
    steps: int
    group_size: int
    sampling_probability: float
    noise_multiplier: float
    l2_clip_norm: float
    population: int
    target_delta: float
    target_epsilon: float | None = None
    item_clip_norm: float | None = None
    unsafe_shuffle: bool = False
    clip_form: ClipForm = ClipForm.THRESHOLD
    clip_stability: float = 0.01
    layer_split: LayerSplit | None = None
    adaptive: AdaptiveClipping | None = None
    accountant: Accountant = Accountant.CONTOUR
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        if self.sampling not in (Sampling.USERS, Sampling.EXAMPLES):
            raise UseError(
                f"sampling must be 'users' or 'examples', got {self.sampling!r}: "
                "there is no sampler that realises it"
            )
        require_count("steps", self.steps)
        require_count("group_size", self.group_size, at_most=10**6)
        require_probability("sampling_probability", self.sampling_probability)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_positive("l2_clip_norm", self.l2_clip_norm)
        require_count("population", self.population)
        require_delta(self.target_delta)
        if self.target_epsilon is not None:
            require_positive("target_epsilon", self.target_epsilon)
        if self.item_clip_norm is not None:
            require_positive("item_clip_norm", self.item_clip_norm)
        if not 1e-6 <= self.clip_stability <= 1e6:
            raise UseError(f"clip_stability must be in [1e-6, 1e6], got {self.clip_stability!r}")
        by_group = self.accountant in _GROUP_PRIVACY and self.sampling is Sampling.EXAMPLES
        if not (by_group or self.accountant is Accountant.CONTOUR):
            raise UseError(
                f"a plan with sampling {self.sampling} cannot claim by the accountant "
                f"{self.accountant}",
                hint="group privacy lifts example-level sampling: use --sampling examples",
            )
        if self.adjacency is not Adjacency.ADD_OR_REMOVE:
            self._require_fixed_graph()
        if self.adaptive is not None:
            if self.clip_form is ClipForm.AUTOMATIC:
                raise UseError(
                    "automatic clipping has no threshold that a quantile could set",
                    hint="adapt threshold or normalized clipping",
                )
            assert math.isfinite(self.sum_noise_multiplier)

    def _require_fixed_graph(self) -> None:
        if self.adjacency is not Adjacency.FIXED_GRAPH:
            raise UseError(
                f"a plan claims under add-or-remove or fixed-graph adjacency, not {self.adjacency}"
            )
        if self.sampling is not Sampling.EXAMPLES or self.accountant is not Accountant.CONTOUR:
            raise UseError(
                f"sampling {self.sampling} with the accountant {self.accountant} has no bound "
                "under fixed-graph adjacency: one user's records lie with other users too",
                hint="use --sampling examples and the accountant contour",
            )

    @classmethod
    def for_users(
        cls,
        *,
        population: int,
        cohort_size: float,
        group_size: int,
        steps: int,
        l2_clip_norm: float,
        target_delta: float,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        item_clip_norm: float | None = None,
        unsafe_shuffle: bool = False,
    ) -> Self:
        """A ULS plan: q = ``cohort_size / population``; σ given, or the least for the budget."""
        return cls(
            sampling=Sampling.USERS,
            steps=steps,
            group_size=group_size,
            sampling_probability=_ratio("cohort_size", cohort_size, "population", population),
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            l2_clip_norm=l2_clip_norm,
            population=population,
            target_delta=target_delta,
            target_epsilon=target_epsilon,
            item_clip_norm=item_clip_norm,
            unsafe_shuffle=unsafe_shuffle,
        )._within_budget(noise_multiplier)

    @classmethod
    def for_examples(
        cls,
        *,
        population: int,
        batch_size: float,
        group_size: int,
        steps: int,
        l2_clip_norm: float,
        target_delta: float,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        unsafe_shuffle: bool = False,
        accountant: Accountant = Accountant.CONTOUR,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    ) -> Self:
        """An ELS plan: p = ``batch_size / population``, a declared number of capped examples.

        With a group-privacy ``accountant`` a Group Privacy plan: the same steps, another price.
        """
        return cls(
            sampling=Sampling.EXAMPLES,
            steps=steps,
            group_size=group_size,
            sampling_probability=_ratio("batch_size", batch_size, "population", population),
            noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
            l2_clip_norm=l2_clip_norm,
            population=population,
            target_delta=target_delta,
            target_epsilon=target_epsilon,
            unsafe_shuffle=unsafe_shuffle,
            accountant=accountant,
            adjacency=adjacency,
        )._within_budget(noise_multiplier)

    def _within_budget(self, noise_multiplier: float | None) -> Self:
        """This plan with the least noise for its budget, unless the noise was given."""
        if (noise_multiplier is None) == (self.target_epsilon is None):
            raise UseError(
                "give exactly one of noise_multiplier and target_epsilon: "
                "the one determines the other"
            )
        if self.target_epsilon is None:
            return self
        mechanism = self.mechanism
        budget = {
            "target_epsilon": self.target_epsilon,
            "target_delta": ideal_delta_for(
                self.target_epsilon, self.target_delta, steps=self.steps
            ),
        }
        if isinstance(mechanism, FixedGraphExamples):
            noise = calibrate_fixed_graph(mechanism, **budget).noise_multiplier
        else:
            noise = calibrate_by(self.accountant, mechanism, **budget).noise_multiplier
        return replace(self, noise_multiplier=noise)

    @property
    def mechanism(self) -> SampledMechanism | FixedGraphExamples:
        """What the accountant prices: built from the same fields as the sampler; Gaussian noise."""
        if self.sampling is Sampling.USERS:
            return PoissonUsers(
                sampling_probability=self.sampling_probability,
                noise_multiplier=self.noise_multiplier,
                steps=self.steps,
            )
        if self.adjacency is Adjacency.FIXED_GRAPH:
            return FixedGraphExamples(
                sampling_probability=self.sampling_probability,
                group_size=self.group_size,
                noise_multiplier=self.noise_multiplier,
                steps=self.steps,
            )
        return PoissonExamples(
            sampling_probability=self.sampling_probability,
            group_size=self.group_size,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
        )

    def _ideal(self, steps: int) -> Callable[[float], Bracket]:
        """ε by δ of ``steps`` steps with Gaussian noise."""
        mechanism = self.mechanism.with_steps(steps)
        if isinstance(mechanism, FixedGraphExamples):
            return mechanism.epsilon
        return partial(epsilon_by, self.accountant, mechanism)

    @property
    def algorithm(self) -> str:
        """``"ULS"`` or ``"ELS"``, as in Charles et al. 2024; ``"GP"`` is Group Privacy."""
        if self.accountant in _GROUP_PRIVACY:
            return "GP"
        return "ULS" if self.sampling is Sampling.USERS else "ELS"

    @property
    def denominator(self) -> float:
        """What the noisy sum is divided by: M = qN or B = pN of the *declared* population N."""
        return self.sampling_probability * self.population

    @property
    def count_noise_std(self) -> float | None:
        """σ_b, the noise on the count of unclipped units; None where the clip norm is fixed."""
        if self.adaptive is None:
            return None
        return self.adaptive.count_noise(
            noise_multiplier=self.noise_multiplier, denominator=self.denominator
        )

    @property
    def sum_noise_multiplier(self) -> float:
        """The noise on the clipped sum divided by its clip norm.

        It is ``noise_multiplier``; or, beside the count of adaptive clipping, more.
        """
        count_noise_std = self.count_noise_std
        if count_noise_std is None:
            return self.noise_multiplier
        return sum_noise_multiplier(
            noise_multiplier=self.noise_multiplier, count_noise_std=count_noise_std
        )

    def noise_std_at(self, l2_clip_norm: float) -> float:
        """Standard deviation of the noise on a sum clipped to this norm, in gradient units."""
        return self.sum_noise_multiplier * l2_clip_norm

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the clipped sum: σ·C, in gradient units.

        With ``adaptive``, that of the first step.
        """
        return self.noise_std_at(self.l2_clip_norm)

    @property
    def clipping(self) -> str | None:
        """Clipping options in words; None where clipping is the papers' own."""
        words = []
        if self.clip_form is not ClipForm.THRESHOLD:
            words.append(str(self.clip_form))
        if self.layer_split is not None:
            words.append(f"by layer ({self.layer_split})")
        if self.adaptive is not None:
            words.append(
                f"adaptive (quantile {self.adaptive.quantile:g}, count noise "
                f"{self.count_noise_std:.4g}, sum noise {self.sum_noise_multiplier:.6g})"
            )
        return ", ".join(words) or None

    @property
    def realised_sampling(self) -> Sampling:
        """What the plan's sampler really does: the accounted draws, or a shuffle."""
        return Sampling.UNSAFE_SHUFFLE if self.unsafe_shuffle else self.sampling

    def guarantee(
        self, steps: int | None = None, *, delta: float | None = None, void: bool = False
    ) -> Guarantee:
        """The claim of this plan after ``steps`` steps.

        Args:
            steps: attempted steps; all of the plan's by default.
            delta: in (0, 1); ``target_delta`` by default.
            void: something outside the plan (a known seed) broke the claim.

        Returns:
            The claim of the steps as they run, their noise's distance from a Gaussian included
            (`userdp.accounting.implemented`); ``epsilon`` is infinite where it is void, where the
            accounting does not cover what runs (unsafe shuffling), or where that distance is more
            than ``delta`` allows.
        """
        steps = self.steps if steps is None else require_count("steps", steps, at_least=0)
        delta = self.target_delta if delta is None else require_delta(delta)
        if void or self.unsafe_shuffle:
            epsilon, accountant = math.inf, "none"
        elif steps == 0:
            epsilon, accountant = 0.0, "none"
        else:
            bracket = implemented_epsilon(self._ideal(steps), delta, steps=steps)
            epsilon, accountant = bracket.upper, bracket.accountant
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            unit=PrivacyUnit.USER,
            adjacency=self.adjacency,
            sampling=self.realised_sampling,
            accountant=accountant,
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, with the first schema that knows all that it says.

        So a plan without newer options reads, and digests, as it always did.
        """
        given = asdict(self)
        defaults = {field.name: field.default for field in fields(self)}
        schema = max((v for k, v in _SINCE.items() if given[k] != defaults[k]), default=1)
        values = {"schema": f"{_SCHEMAS}{schema}"}
        values |= {k: v for k, v in given.items() if _SINCE.get(k, 1) <= schema}
        return {k: str(v) if isinstance(v, StrEnum) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; `UseError` for another schema or unknown or missing fields."""
        known = {field.name for field in fields(cls)}
        schemas = {f"{_SCHEMAS}{number}": number for number in (1, *_SINCE.values())}
        schema = schemas.get(str(values.get("schema")))
        if schema is None:
            raise UseError(
                f"this is not a plan of schema {SCHEMA}, it says {values.get('schema')!r}",
                hint="make the plan again with this version of userdp",
            )
        known -= {name for name, since in _SINCE.items() if since > schema}
        given = {key: value for key, value in values.items() if key != "schema"}
        if set(given) != known:
            raise UseError(
                f"the plan's fields are off: unknown {sorted(set(given) - known)}, "
                f"missing {sorted(known - set(given))}"
            )
        try:
            given["sampling"] = Sampling(given["sampling"])
            if "clip_form" in given:
                given["clip_form"] = ClipForm(given["clip_form"])
                if given["layer_split"] is not None:
                    given["layer_split"] = LayerSplit(given["layer_split"])
                if given["adaptive"] is not None:
                    given["adaptive"] = AdaptiveClipping(**given["adaptive"])
            if "accountant" in given:
                given["accountant"] = Accountant(given["accountant"])
            if "adjacency" in given:
                given["adjacency"] = Adjacency(given["adjacency"])
        except (ValueError, TypeError) as error:
            raise UseError(f"the plan says something this version does not know: {error}") from None
        return cls(**given)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal plans only."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the plan as JSON, whole or not at all."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a plan; `UseError` if the file is not one."""
        return cls.from_dict(read_json(path, what="a plan"))


def _ratio(part_name: str, part: float, whole_name: str, whole: int) -> float:
    require_count(whole_name, whole)
    if not 0 < part <= whole:
        raise UseError(
            f"{part_name} must be greater than 0 and at most {whole_name} ({whole}), got {part!r}: "
            "it is an expectation over the declared population"
        )
    return part / whole
