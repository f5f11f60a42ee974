"""The local algorithms of a federation, those of Marathe et al. 2023, as one table.

Each defines the sum of a silo's local step and whom its noise protects. docs/federated.md proves
the prices. A new algorithm is a line of `ALGORITHMS`, and a class in `userdp.sampling` if it forms
the clipped units in another way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from userdp.accounting import gaussian_steps
from userdp.accounting.bracket import implemented_epsilon
from userdp.core.errors import UseError, one_of
from userdp.core.vocabulary import Adjacency, Guarantee, PrivacyUnit
from userdp.noise import Gaussian
from userdp.noise.clip_forms import Clip
from userdp.plans import Budget, Plan
from userdp.sampling import PoissonExamples, PoissonPooled, PoissonSubjects, Sampling
from userdp.training.config import PlainPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """Public constants of every silo, declared and not counted.

    Args:
        items_per_silo: the declared number of items of a silo: a public constant, a round number
            that you would tell a stranger. Counting the data would make it private.
        subjects_per_silo: the declared number of subjects of a silo, such a constant too.
        group_size: k, most items of a subject in a silo; the rest never trains, and is counted.
        batch_size: items that a step of a silo draws, expected over the declared number.
        local_steps: T, noisy steps of a silo in a round.
        l2_clip_norm: C.
    """

    items_per_silo: int
    subjects_per_silo: int
    group_size: int = 4
    batch_size: float = 64
    local_steps: int = 1
    l2_clip_norm: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Unprotected(PlainPlan):
    """One round of a silo without privacy, in the place of the `Plan` of other algorithms."""

    kind: ClassVar[str] = "unprotected"


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """One of the local algorithms.

    Args:
        name: in plans and on the command line.
        sampling: forms the clipped units of a step and knows their price; None takes shuffled
            mini-batches, which have no ε.
        clips_items: each item is clipped before the items of a unit are averaged. The mean of
            gradients of norm at most C has norm at most C, so that the unit's own clip changes
            nothing; it is there because the engine states the sensitivity by it.
        counts_subjects: the denominator counts the declared subjects, not the items.
        for_one_item: the budget is that of a subject who holds one item, so that only the steps
            of one silo count. Nothing is claimed of one item among several
            (`PrivacyUnit.LONE_ITEM`).
        for_silos: a whole silo is protected too, under replacement.
    """

    name: str
    sampling: type[Sampling] | None
    clips_items: bool = False
    counts_subjects: bool = False
    for_one_item: bool = False
    for_silos: bool = False

    def local(self, declared: Declared, budget: Budget) -> Plan | Unprotected:
        """The plan of one round of one silo, at noise multiplier 1 until it is calibrated."""
        items, norm = declared.items_per_silo, declared.l2_clip_norm
        if self.sampling is None:
            size = max(1, round(declared.batch_size))
            return Unprotected(steps=declared.local_steps, batch_size=size)
        return Plan(
            sampling=self.sampling.of_size(
                declared.batch_size, population=items, group_size=declared.group_size
            ),
            clip=Clip(l2_norm=norm, item_norm=norm if self.clips_items else None),
            noise=Gaussian(multiplier=1.0),
            steps=declared.local_steps,
            population=declared.subjects_per_silo if self.counts_subjects else items,
            budget=budget,
        )

    def budgeted(self, local: Plan, *, charged: int, most: int) -> Plan:
        """The plan of all steps that the budget is for.

        Args:
            local: one round of one silo.
            charged: steps of all silos that may hold one subject.
            most: steps of the silo that runs most.
        """
        return _of_one_item(local, most) if self.for_one_item else replace(local, steps=charged)

    def further_claims(self, local: Plan, *, most: int) -> Iterator[Guarantee]:
        """The claims for units that lie in one silo, which runs ``most`` steps at most."""
        if self.for_one_item:
            yield replace(_of_one_item(local, most).guarantee(), unit=PrivacyUnit.LONE_ITEM)
        if self.for_silos:
            # The whole silo under replacement, with certainty: μ = 2 √steps / σ. Proposition 4, in
            # place of Marathe et al. 2023, Theorem 3.10.
            whole = gaussian_steps(
                shift=2.0,
                noise_multiplier=local.noise.multiplier,
                steps=most,
                adjacency=Adjacency.REPLACE,
            )
            bracket = implemented_epsilon(whole.epsilon, local.budget.target_delta, steps=most)
            yield replace(
                local.guarantee(0),
                epsilon=bracket.upper,
                unit=PrivacyUnit.SILO,
                adjacency=Adjacency.REPLACE,
                accountant=bracket.accountant,
            )


def _of_one_item(local: Plan, steps: int) -> Plan:
    """The steps as they are for a subject who holds one item."""
    return replace(local, sampling=replace(local.sampling, group_size=1), steps=steps)


ALGORITHMS: dict[str, Algorithm] = {
    one.name: one
    for one in (
        # Plain steps, which protect nobody: the baseline of the others.
        Algorithm(name="fedavg", sampling=None),
        # Section 3: the noise of LocalGroupDP for subjects of one item. Proposition 1.
        Algorithm(name="local-item-dp", sampling=PoissonExamples, for_one_item=True),
        # Algorithm 1: each item is a unit; a subject is in a step with a binomial number of them.
        Algorithm(name="local-group-dp", sampling=PoissonExamples),
        # Algorithm 2: a unit is a subject with its drawn items. Proposition 2.
        Algorithm(
            name="higradavg-dp", sampling=PoissonSubjects, clips_items=True, counts_subjects=True
        ),
        # Algorithm 3: the whole mini-batch is one unit. Propositions 3 and 4.
        Algorithm(name="user-ldp", sampling=PoissonPooled, for_silos=True),
    )
}
"""Every algorithm by its name; algorithms of Marathe et al. 2023, propositions of the docs."""


def algorithm_of(name: str) -> Algorithm:
    """The algorithm of that name; `UseError` if there is none."""
    if name not in ALGORITHMS:
        raise UseError(f"there is no algorithm {name!r}", hint=one_of(name, ALGORITHMS))
    return ALGORITHMS[name]
