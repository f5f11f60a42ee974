"""`Algorithm`: what a silo's local step adds up, and whom its noise is meant to protect."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from userdp.clip import Clip
from userdp.federated.algorithms.unprotected import Unprotected
from userdp.noise import Gaussian
from userdp.plans import Budget, Plan
from userdp.sampling import Sampling

if TYPE_CHECKING:
    from userdp.federated.plan import FederationPlan
    from userdp.vocabulary import Guarantee


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """Public constants of every silo, declared and not counted.

    Args:
        items_per_silo: the nominal number of items in a silo.
        subjects_per_silo: the nominal number of subjects in a silo.
        group_size: k, most items of a subject in a silo.
        batch_size: items that a step of a silo draws, expected over ``items_per_silo``.
        local_steps: T.
        l2_clip_norm: C.
        budget: of a subject; for LocalItemDP of one who holds one item.
    """

    items_per_silo: int
    subjects_per_silo: int
    group_size: int
    batch_size: float
    local_steps: int
    l2_clip_norm: float
    budget: Budget


class Algorithm:
    """One of the local algorithms of Marathe et al. 2023.

    A new one is a file in this folder with a subclass, and its name in `ALGORITHMS`.

    Attributes:
        name: in plans and on the command line.
        sampling: how a step forms the units that are clipped; it knows their price.
        clips_items: whether each item is clipped before the items of a unit are averaged.
    """

    name: ClassVar[str]
    sampling: ClassVar[type[Sampling]]
    clips_items: ClassVar[bool] = False

    def local(self, declared: Declared) -> Plan | Unprotected:
        """The plan of one round of one silo, at noise multiplier 1 until it is calibrated."""
        norm = declared.l2_clip_norm
        return Plan(
            sampling=self.sampling.of_size(
                declared.batch_size,
                population=declared.items_per_silo,
                group_size=declared.group_size,
            ),
            clip=Clip(l2_norm=norm, item_norm=norm if self.clips_items else None),
            noise=Gaussian(multiplier=1.0),
            steps=declared.local_steps,
            population=self.population(declared),
            budget=declared.budget,
        )

    def population(self, declared: Declared) -> int:
        """Which of the two declared numbers the denominator counts by."""
        return declared.items_per_silo

    def budgeted(self, plan: FederationPlan, local: Plan) -> Plan:
        """The steps that the budget is for: by default all of those that one subject is in."""
        return replace(local, steps=plan.charged_steps)

    def further_claims(self, plan: FederationPlan, local: Plan) -> tuple[Guarantee, ...]:
        """What is guaranteed beside the claim per subject, for other units."""
        return ()
