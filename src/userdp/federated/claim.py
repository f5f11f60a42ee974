"""What a federation costs a subject, held against the ledgers of its silos."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from userdp.claim import claim
from userdp.errors import UseError
from userdp.federated.plan import STORE, FederationPlan
from userdp.ledger import RunFolder, StoreLedger
from userdp.plan import Plan
from userdp.vocabulary import Guarantee


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationClaim:
    """What the ledgers of silos add up to.

    Args:
        guarantee: per subject, removed from all silos; of the whole plan, see `federation_claim`.
        steps: charged local steps by silo, of the ledgers that are there.
        subject_steps: those that a subject is charged.
        complete: every planned step of every silo ran.
        other_charges: of the stores that lie beside the runs: what their ledgers hold of these
            people besides, such as an earlier run of the same federation. Not in the guarantee.
    """

    guarantee: Guarantee
    steps: dict[int, int]
    subject_steps: int
    complete: bool
    other_charges: int

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values."""
        return {
            **asdict(self.guarantee),
            "steps": {str(silo): steps for silo, steps in self.steps.items()},
            "subject_steps": self.subject_steps,
            "complete": self.complete,
            "other_charges": self.other_charges,
        }


def federation_claim(plan: FederationPlan, runs: Iterable[Path]) -> FederationClaim:
    """The claim of a federation, after its silos' ledgers were held against its plan.

    Guarantee: ε of the whole plan, whether or not all of it ran: when to stop may have been
    decided by looking at the weights, and a silo may have failed in the rounds in which it had
    most to hide. A ledger that is missing is therefore charged in full, like all others. Infinite
    for FedAvg, and where a silo's seeds were known or its noise is of an unknown sampler.

    Args:
        plan: the federation's.
        runs: the folders of silos' runs; of each the ledger alone is read.

    Raises:
        UseError: no runs; or a ledger was edited, is of another plan, or is there twice.
    """
    steps: dict[int, int] = {}
    finished, others, void = 0, 0, False
    for run in map(RunFolder, runs):
        facts = run.read_facts()
        silo = int(facts.get("silo", -1))
        own = claim(run.ledger)
        expected = plan.of_silo(silo) if facts.get("federation") == plan.digest else None
        if expected is None or own.plan != (expected if isinstance(expected, Plan) else None):
            raise UseError(f"{run.ledger} belongs to another federation, or to another silo of it")
        if silo in steps:
            raise UseError(f"{run.ledger} is a second ledger of silo {silo}")
        steps[silo] = own.steps
        finished += run.finished
        others += max(0, len(StoreLedger(run.path.parent / STORE).charges()) - 1)
        void = void or math.isinf(own.guarantee.epsilon)
    if not steps:
        raise UseError("a claim needs at least one silo's ledger")
    guarantee = plan.guarantee()
    return FederationClaim(
        guarantee=replace(guarantee, epsilon=math.inf, accountant="none") if void else guarantee,
        steps=steps,
        subject_steps=plan.charged_steps,
        complete=finished == plan.silos,
        other_charges=others,
    )
