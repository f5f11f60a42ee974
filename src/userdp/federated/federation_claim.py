"""What a federation costs a subject, held against the ledgers of its silos."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.claims import Claim
from userdp.claims.claims import compose
from userdp.claims.lineage import Lineage, run_lineage
from userdp.claims.parts import Bound, Condition, ConditionKind, Part, Unclaimed
from userdp.core.errors import UseError
from userdp.core.vocabulary import Guarantee
from userdp.federated.federation_plan import FederationPlan
from userdp.ledger import RunRecord
from userdp.plans import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationClaim:
    """What a federation's plan and the ledgers of its silos add up to.

    Args:
        claim: per subject, removed from all silos; of the whole plan, see `federation_claim`. Its
            ``steps`` are those that a subject is charged.
        steps: charged local steps by silo, of the ledgers that are there.
    """

    claim: Claim
    steps: dict[int, int]

    @property
    def guarantee(self) -> Guarantee:
        """The claim's."""
        return self.claim.guarantee

    @property
    def complete(self) -> bool:
        """Whether every planned step of every silo ran."""
        return self.claim.complete

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values."""
        steps = {str(silo): steps for silo, steps in self.steps.items()}
        return {**self.claim.to_dict(), "steps": steps, "subject_steps": self.claim.steps}


def federation_claim(
    plan: FederationPlan, runs: Iterable[Path], *, spread: bool = True
) -> FederationClaim:
    """The claim of a federation, after its silos' ledgers were held against its plan.

    Guarantee: ε of the whole plan, whether or not all of it ran: when to stop may have been
    decided by looking at the weights, and a silo may have failed in the rounds in which it had
    most to hide. A ledger that is missing is therefore charged in full, like all others. Besides,
    all that any silo's run inherited: a subject may be in each of them; what a silo inherited whose
    ledger is missing is not known, and a condition. Infinite for FedAvg, and
    where a silo's seeds were known.

    Args:
        plan: the federation's.
        runs: the folders of silos' runs; of each the ledger alone is read.
        spread: whether the items were spread over the silos here, which keeps the plan's bound on
            the silos of a subject. In a deployment nobody can check it: a condition.

    Raises:
        UseError: no runs; or a ledger was edited, is of another plan, or is there twice.
    """
    steps: dict[int, int] = {}
    finished = 0
    lineage = Lineage(parts=(_whole(plan),))
    for run in map(RunRecord.read, runs):
        facts, own = run.facts, run.plan
        silo = int(facts.get("silo", -1))
        expected = plan.of_silo(silo) if facts.get("federation") == plan.digest else None
        if expected is None or own != (expected if isinstance(expected, Plan) else None):
            raise UseError(f"{run.path} belongs to another federation, or to another silo of it")
        if silo in steps:
            raise UseError(f"{run.path} is a second ledger of silo {silo}")
        steps[silo] = run.attempts
        finished += run.finish is not None
        lineage += _besides(run_lineage(run), run.run_id)
    if not steps:
        raise UseError("a claim needs at least one silo's ledger")
    missing = [str(silo) for silo in range(plan.silos) if silo not in steps]
    if missing:
        unseen = Condition(kind=ConditionKind.SILO_LEDGERS, told=", ".join(missing))
        lineage += Lineage(conditions=(unseen,))
    if not spread and plan.silos_per_subject < plan.silos:
        bound = Condition(kind=ConditionKind.SILOS, told=str(plan.silos_per_subject))
        lineage += Lineage(conditions=(bound,))
    return FederationClaim(
        claim=Claim(
            guarantee=compose(lineage),
            lineage=lineage,
            subject="federation",
            steps=plan.charged_steps,
            complete=finished == plan.silos,
        ),
        steps=steps,
    )


def _whole(plan: FederationPlan) -> Part:
    guarantee = plan.guarantee()
    if math.isinf(guarantee.epsilon):
        return Unclaimed(id=plan.digest, why=f"a federation by {plan.algorithm}")
    return Bound(id=plan.digest, what=f"all rounds of {plan.algorithm}", bound=guarantee)


def _besides(lineage: Lineage, run_id: str) -> Lineage:
    """A silo's lineage without the steps of its own, which the federation's plan prices.

    Where a budget of the silo's store pays for them, all of it stays beside the federation's price:
    it may hold other runs.
    """
    own = next((part for part in lineage.parts if part.id == run_id), None)
    charged_again = getattr(own, "charges", 1) > 1
    return Lineage(
        parts=tuple(
            part
            for part in lineage.parts
            if part.id != run_id or isinstance(part, Unclaimed) or charged_again
        ),
        conditions=lineage.conditions,
        within=lineage.within,
    )
