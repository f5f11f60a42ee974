"""UserLDP: a local step is one clipped gradient of the whole mini-batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from userdp.accounting import gaussian_steps
from userdp.accounting.implemented import implemented_epsilon
from userdp.federated.algorithms.base import Algorithm
from userdp.plans import Plan
from userdp.sampling import PoissonPooled, Sampling
from userdp.vocabulary import Adjacency, Guarantee, PrivacyUnit

if TYPE_CHECKING:
    from userdp.accounting import Mixture
    from userdp.federated.plan import FederationPlan


class UserLDP(Algorithm):
    """The mini-batch is one unit, so that a whole silo is protected too, under replacement.

    Source: Marathe et al. 2023, Algorithm 3; docs/federated.md, Propositions 3 and 4.
    """

    name: ClassVar[str] = "user-ldp"
    sampling: ClassVar[type[Sampling]] = PoissonPooled

    def further_claims(self, plan: FederationPlan, local: Plan) -> tuple[Guarantee, ...]:
        steps = plan.most_local_steps
        whole = silo_mechanism(noise_multiplier=local.noise.multiplier, steps=steps)
        bracket = implemented_epsilon(whole.epsilon, local.budget.target_delta, steps=steps)
        claimed = replace(
            local.guarantee(0),
            epsilon=bracket.upper,
            unit=PrivacyUnit.SILO,
            adjacency=Adjacency.REPLACE,
            accountant=bracket.accountant,
        )
        return (claimed,)


def silo_mechanism(*, noise_multiplier: float, steps: int) -> Mixture:
    """UserLDP for a whole silo under replacement: μ = 2 √steps / σ.

    Source: docs/federated.md, Proposition 4; in place of Marathe et al. 2023, Theorem 3.10.
    """
    return gaussian_steps(
        shift=2.0, noise_multiplier=noise_multiplier, steps=steps, adjacency=Adjacency.REPLACE
    )
