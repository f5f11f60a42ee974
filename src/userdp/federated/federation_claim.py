"""The claim of a federation, after the ledgers of its silos were held against its plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from userdp.claims import Claim
from userdp.claims.descent import run_lineage
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Bound, Condition, ConditionKind, Part, Unclaimed
from userdp.core.errors import UseError
from userdp.federated.federation_plan import FederationPlan
from userdp.ledger import RunRecord
from userdp.plans import Plan


def federation_claim(plan: FederationPlan, runs: Iterable[Path], *, spread: bool = True) -> Claim:
    """The claim per subject, removed from all silos; its ``steps`` are those a subject is charged.

    Guarantee: ε of the whole plan, whether or not all of it ran: when to stop may have been
    decided by looking at the weights, and a silo may have failed in the rounds in which it had
    most to hide. A missing ledger is therefore charged in full, like all others. The claim also
    holds all that any silo's run inherited, since a subject may be in each of them. What a silo
    whose ledger is missing inherited is unknown, so that it becomes a condition. ε is infinite for
    FedAvg, and where a silo's seeds were known.

    Args:
        plan: the federation's.
        runs: the folders of silos' runs; only their ledgers are read.
        spread: whether the items were spread over the silos here, which keeps the plan's bound on
            the silos of a subject. Nobody can check the bound in a deployment: a condition there.

    Raises:
        UseError: no runs; or a ledger was edited, is of another plan, or is there twice.
    """
    seen: set[int] = set()
    complete = True
    lineage = Lineage(parts=(_whole(plan),))
    for run in map(RunRecord.read, runs):
        facts, own = run.facts, run.plan
        silo = int(facts.get("silo", -1))
        expected = plan.of_silo(silo) if facts.get("federation") == plan.digest else None
        if expected is None or own != (expected if isinstance(expected, Plan) else None):
            raise UseError(f"{run.path} belongs to another federation, or to another silo of it")
        if silo in seen:
            raise UseError(f"{run.path} is a second ledger of silo {silo}")
        seen.add(silo)
        complete = complete and run.finish is not None
        lineage += _besides(run_lineage(run), run.run_id)
    if not seen:
        raise UseError("a claim needs at least one silo's ledger")
    missing = [str(silo) for silo in range(plan.silos) if silo not in seen]
    if missing:
        unseen = Condition(kind=ConditionKind.SILO_LEDGERS, told=", ".join(missing))
        lineage += Lineage(conditions=(unseen,))
    if not spread and plan.silos_per_subject < plan.silos:
        bound = Condition(kind=ConditionKind.SILOS, told=str(plan.silos_per_subject))
        lineage += Lineage(conditions=(bound,))
    return Claim(
        guarantee=lineage.guarantee(),
        lineage=lineage,
        subject="federation",
        steps=plan.charged_steps,
        complete=complete and not missing,
    )


def _whole(plan: FederationPlan) -> Part:
    guarantee = plan.guarantee()
    if math.isinf(guarantee.epsilon):
        return Unclaimed(id=plan.digest, why=f"a federation by {plan.algorithm}")
    return Bound(id=plan.digest, what=f"all rounds of {plan.algorithm}", bound=guarantee)


def _besides(lineage: Lineage, run_id: str) -> Lineage:
    """A silo's lineage without its own steps, which the federation's plan prices.

    Where a budget of the silo's store pays for these steps, all of it stays beside the federation's
    price, since it may hold other runs.
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
