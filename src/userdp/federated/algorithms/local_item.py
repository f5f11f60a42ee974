"""LocalItemDP: a local step adds clipped item gradients, with noise for subjects of one item."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from userdp.federated.algorithms.local_group import LocalGroup
from userdp.plans import Plan
from userdp.vocabulary import Guarantee, PrivacyUnit

if TYPE_CHECKING:
    from userdp.federated.plan import FederationPlan


class LocalItem(LocalGroup):
    """The budget is that of a subject who holds one item: only one silo's steps count for him.

    The claim per subject is that of LocalGroupDP with less noise. Nothing is claimed of one item
    among several: see `PrivacyUnit.LONE_ITEM`.

    Source: Marathe et al. 2023, Section 3 (LocalItemDP), whose data sets have no cap, no split and
    no spread; docs/federated.md, Proposition 1.
    """

    name: ClassVar[str] = "local-item-dp"

    def budgeted(self, plan: FederationPlan, local: Plan) -> Plan:
        one_item = replace(local.sampling, group_size=1)
        return replace(local, sampling=one_item, steps=plan.most_local_steps)

    def further_claims(self, plan: FederationPlan, local: Plan) -> tuple[Guarantee, ...]:
        claimed = self.budgeted(plan, local).guarantee()
        return (replace(claimed, unit=PrivacyUnit.LONE_ITEM),)
