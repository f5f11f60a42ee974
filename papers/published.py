"""The accounting as Marathe et al. 2023 published them; no ε is claimed for them.

The noise is that of the moments accountant (Rényi DP), of the group lemma with the mini-batch's
largest group, of the sampling fraction kB/|D| and of sensitivity C for UserLDP. By how much rounds
are reduced is a `Reduction`: √s as published, or s. `FLAWS` names the steps that are not sound;
what is sound, and claimed, is `userdp.federated`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

from userdp.accounting import Accountant, binomial_steps, calibrate
from userdp.core.errors import UseError
from userdp.federated.algorithms import ALGORITHMS, Declared
from userdp.federated.federation_plan import FederationPlan
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.sampling.base import Indices

LOCAL_GROUP, HIGRADAVG, USER_LDP = "local-group-dp", "higradavg-dp", "user-ldp"
FOR_SUBJECTS = (LOCAL_GROUP, HIGRADAVG, USER_LDP)
"""The algorithms whose noise is meant to protect subjects; that of LocalItemDP protects items."""
FLAWS = {"local-item-dp": "g", LOCAL_GROUP: "abg", HIGRADAVG: "cdg", USER_LDP: "eg"}
"""Why the published accounting of an algorithm claims nothing: letters of docs/federated.md. Under
`Reduction.PUBLISHED` flaw (f) is one more (`flaws_of`)."""


class Reduction(StrEnum):
    """By how much the rounds of an algorithm for subjects shrink where s silos run in each.

    Only ``LINEAR`` is sound under composition: s silos' R' rounds of T steps compose to s T R'
    steps, which are the T R that the noise was calibrated for if R' = R/s, and √s times as many if
    R' = R/√s, so that the privacy loss of the published reduction is about s^¼ times the promised.

    ``PUBLISHED``: R' = ⌊R/√s⌋. Source: Marathe et al. 2023, Theorem 3.13 ("by training for R/√s
    rounds") and Section 5 ("reduces the number of training rounds by √s"; 25 of 100 rounds on
    FEMNIST and 50 of 200 on Shakespeare, for s = 16).

    ``LINEAR``: R' = ⌊R/s⌋. Source: docs/federated.md, flaw (f); not in the paper.
    """

    PUBLISHED = "sqrt"
    LINEAR = "linear"

    def rounds(self, planned: int, *, silos_per_round: int) -> int:
        """The rounds that are left of ``planned``; at least one.

        >>> [one.rounds(100, silos_per_round=16) for one in Reduction]
        [25, 6]
        """
        if self is Reduction.LINEAR:
            return max(1, planned // silos_per_round)
        # Whole numbers: ⌊R/√s⌋ = ⌊√⌊R²/s⌋⌋ exactly.
        return max(1, math.isqrt(planned**2 // silos_per_round))


def flaws_of(algorithm: str, reduction: Reduction) -> str:
    """Letters of docs/federated.md: what is not sound in the published accounting of one run."""
    if reduction is Reduction.PUBLISHED and algorithm in FOR_SUBJECTS:
        return "".join(sorted(FLAWS[algorithm] + "f"))
    return FLAWS[algorithm]


def paper_noise(
    algorithm: str,
    *,
    batch_fraction: float,
    group_size: int,
    steps: int,
    target_epsilon: float,
    target_delta: float,
) -> float:
    """The published noise multiplier; it supports no claim (`FLAWS`).

    Args:
        algorithm: a private one, by name.
        batch_fraction: B/|D_i|, in (0, 1].
        group_size: LocalGroupDP: Z, the largest group in the mini-batch. HiGradAvgDP: k of the
            fraction kB/|D_i|. Says nothing otherwise.
        steps: T·R of one silo, before rounds are reduced.
        target_epsilon: ε.
        target_delta: δ.

    Source: Marathe et al. 2023, Section 3.1 (σ_Z from ε/Z and δ/(Z e^{(Z-1)ε/Z})), Section 3.2,
    Theorem 3.10. Theorem 3.11's further condition is not applied.
    """
    if algorithm not in FLAWS:
        raise UseError(f"{algorithm} adds no noise: it has no price")
    epsilon, delta, fraction = target_epsilon, target_delta, batch_fraction
    if algorithm == LOCAL_GROUP and group_size > 1:
        epsilon, delta = group_target(target_epsilon, target_delta, group_size)
    elif algorithm == HIGRADAVG:
        fraction = min(1.0, group_size * batch_fraction)
    elif algorithm == USER_LDP:
        fraction = 1.0
    return _moments_noise(fraction, steps, epsilon, delta)


def group_target(epsilon: float, delta: float, group_size: int) -> tuple[float, float]:
    """(ε/Z, δ/(Z e^{(Z-1)ε/Z})): what the paper asks of an item for a group of Z (Definition 3.3).

    >>> group_target(4.0, 1e-5, 2) == (2.0, 1e-5 / (2 * math.exp(2.0)))
    True
    """
    share = epsilon / group_size
    return share, delta / (group_size * math.exp((group_size - 1) * share))


@lru_cache(maxsize=4096)
def _moments_noise(fraction: float, steps: int, epsilon: float, delta: float) -> float:
    mechanism = binomial_steps(sampling_probability=fraction, noise_multiplier=1.0, steps=steps)
    return calibrate(
        mechanism, target_epsilon=epsilon, target_delta=delta, accountant=Accountant.RDP
    ).noise_multiplier


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A federation as the paper ran it. Its plan's noise is the published one: nothing is claimed.

    Args:
        plan: the constants; ``rounds`` after the reduction, and the noise of a group of Z = 1.
        planned_rounds: for which the noise was calibrated.
        batch: B, the items of every mini-batch: exactly so many (flaw (g)).
    """

    plan: FederationPlan
    planned_rounds: int
    batch: int

    @classmethod
    def calibrated(
        cls,
        declared: Declared,
        budget: Budget,
        *,
        algorithm: str,
        rounds: int,
        reduction: Reduction,
        **federation: Any,
    ) -> Published:
        """The paper's noise and rounds for the constants of `FederationPlan.calibrated`.

        Rounds of LocalItemDP are not reduced: an item is in one silo.
        """
        left = reduction.rounds(rounds, silos_per_round=federation["silos_per_round"])
        plan = FederationPlan(
            algorithm=algorithm,
            local=ALGORITHMS[algorithm].local(declared, budget),
            rounds=left if algorithm in FOR_SUBJECTS else rounds,
            **federation,
        )
        draft = cls(plan=plan, planned_rounds=rounds, batch=max(1, round(declared.batch_size)))
        noise = draft.noise_of_group(1 if algorithm == LOCAL_GROUP else declared.group_size)
        local = replace(draft.local, noise=Gaussian(multiplier=noise))
        return replace(draft, plan=replace(plan, local=local))

    @property
    def local(self) -> Plan:
        """One round of one silo."""
        assert isinstance(self.plan.local, Plan)
        return self.plan.local

    def noise_of_group(self, largest: int) -> float:
        """`paper_noise` of this federation: σ_Z of LocalGroupDP for a largest group of Z."""
        budget = self.local.budget
        assert budget.target_epsilon is not None
        return paper_noise(
            self.plan.algorithm,
            batch_fraction=self.local.sampling.chance(1),
            group_size=max(1, largest),
            steps=self.local.steps * self.planned_rounds,
            target_epsilon=budget.target_epsilon,
            target_delta=budget.target_delta,
        )

    def noise_of(self, counts: Indices) -> float:
        """σ of a step, by the drawn items of each of its subjects: flaw (a) of LocalGroupDP."""
        if self.plan.algorithm == LOCAL_GROUP:
            return self.noise_of_group(int(counts.max()))
        return self.local.noise.multiplier

    def denominator_of(self, counts: Indices) -> float:
        """What a noisy sum is divided by: flaw (c) of HiGradAvgDP."""
        return float(len(counts)) if self.plan.algorithm == HIGRADAVG else self.local.denominator
