"""A silo's ledger: a line per local step, on the disk before the step reads its data.

It holds public constants alone, so that a silo may hand it on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from userdp.errors import FailureError, UseError
from userdp.federated.accounting import Algorithm
from userdp.federated.plan import FederationPlan
from userdp.ledger.journal import JournalWriter, append_entries, read_entries
from userdp.noise.gaussian import NoiseSampler
from userdp.vocabulary import Guarantee

SCHEMA = "userdp.silo-ledger/2"
LEDGER_FILE = "ledger.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalStep:
    """What one local step really uses, read off the sampler, the clip and the noise.

    Args:
        algorithm: by name.
        sampling_probability: p of each item.
        group_size: most items of a subject in the silo's data, the cap.
        l2_clip_norm: C.
        noise_std: of the noise on the sum; None where the mini-batch decides it (``paper``).
        denominator: what the noisy sum is divided by; None where the mini-batch decides.
        noise_sampler: what draws the noise; None for FedAvg, which draws none.
    """

    algorithm: str
    sampling_probability: float
    group_size: int
    l2_clip_norm: float
    noise_std: float | None
    denominator: float | None
    noise_sampler: NoiseSampler | None

    @classmethod
    def of_plan(cls, plan: FederationPlan) -> Self:
        """What a step of this plan has to be."""
        by_batch = plan.paper and plan.algorithm is Algorithm.LOCAL_GROUP
        realised = not plan.algorithm.private or (
            plan.paper and plan.algorithm is Algorithm.HIGRADAVG
        )
        return cls(
            algorithm=str(plan.algorithm),
            sampling_probability=plan.sampling_probability,
            group_size=plan.group_size,
            l2_clip_norm=plan.l2_clip_norm,
            noise_std=None if by_batch else plan.noise_multiplier * plan.l2_clip_norm,
            denominator=None if realised else plan.denominator,
            noise_sampler=NoiseSampler.HOST if plan.algorithm.private else None,
        )


def require_own_ledger(path: Path, plan: FederationPlan, silo: int) -> None:
    """`UseError` if there is a ledger of another federation or silo at ``path``; writes nothing."""
    if path.exists():
        _require_own(path, read_entries(path), plan, silo)


def _header(plan: FederationPlan, silo: int) -> dict[str, Any]:
    return {"kind": "silo", "schema": SCHEMA, "silo": silo, "plan": plan.to_dict()}


def _require_own(
    path: Path, entries: list[dict[str, Any]], plan: FederationPlan, silo: int
) -> None:
    if not entries or entries[0].get("schema") != SCHEMA:
        raise UseError(f"{path} is not a silo's ledger of schema {SCHEMA}")
    if entries[0] != _header(plan, silo):
        raise UseError(
            f"{path} is the ledger of another federation or of another silo: what was spent there "
            "cannot be continued here",
            hint="give every federation a folder of its own",
        )


class SiloLedger:
    """The writer of a silo's ledger.

    Guarantee: when `attempt` returns, the step is on the disk and charged. A round is begun once;
    only rounds of the plan's schedule in which this silo runs, and T steps in each, are allowed.
    Steps that a crash interrupted stay charged, and their round is not taken up again.
    """

    def __init__(self, path: Path, plan: FederationPlan, silo: int) -> None:
        self.path, self.plan, self.silo = path, plan, silo
        append_entries(path, lambda entries: [] if entries else [_header(plan, silo)])
        entries = read_entries(path)
        _require_own(path, entries, plan, silo)
        self._steps = _steps_by_round(entries)
        self._writer = JournalWriter(path)

    @property
    def attempts(self) -> int:
        """Local steps charged so far."""
        return sum(self._steps.values())

    def begin_round(self, number: int) -> None:
        """Allow T steps for a round.

        Raises:
            FailureError: the silo does not run in this round, or began it before.
        """
        plan = self.plan
        if not 1 <= number <= plan.rounds:
            raise FailureError(
                f"the server asks for round {number}, the plan has {plan.rounds}: one more would "
                "exceed the plan's epsilon",
                hint="a federation that goes on needs a plan and a budget of its own",
            )
        if self.silo not in plan.schedule(number):
            raise FailureError(
                f"the server asks silo {self.silo} for round {number}, in which it does not run by "
                "the plan's schedule"
            )
        if number in self._steps:
            raise FailureError(
                f"silo {self.silo} began round {number} before, and its steps are charged: it sits "
                "this round out"
            )
        self._writer.append({"kind": "round", "round": number})
        self._steps[number] = 0

    def attempt(self, number: int, step: LocalStep) -> None:
        """Charge one step of a round that was begun. Call before any data is read.

        Raises:
            FailureError: the step is not the plan's, or the round's T steps are spent.
        """
        expected = LocalStep.of_plan(self.plan)
        if step != expected:
            raise FailureError(
                f"ledger and silo disagree: a step of round {number} is {step}, the plan says "
                f"{expected}. The reported epsilon would not hold, so the silo stopped before it"
            )
        if self._steps.get(number, self.plan.local_steps) >= self.plan.local_steps:
            raise FailureError(
                f"round {number} has spent its {self.plan.local_steps} steps, or was not begun"
            )
        self._steps[number] += 1
        self._writer.append(
            {"kind": "attempt", "round": number, "step": self._steps[number], **asdict(step)}
        )

    def release(self, number: int) -> None:
        """Note that a round's update is about to be sent."""
        self._writer.append({"kind": "release", "round": number})

    def close(self) -> None:
        """Close the file; every line is on the disk already."""
        self._writer.close()


@dataclass(frozen=True, kw_only=True, slots=True)
class FederationClaim:
    """What the ledgers of silos add up to.

    Args:
        guarantee: per subject, removed from all silos.
        steps: charged local steps by silo.
        subject_steps: those of the s silos with most.
        complete: every planned step of every silo ran.
        flaws: why nothing is claimed, by letter.
    """

    guarantee: Guarantee
    steps: dict[int, int]
    subject_steps: int
    complete: bool
    flaws: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values."""
        return {
            **asdict(self.guarantee),
            "steps": {str(silo): steps for silo, steps in self.steps.items()},
            "subject_steps": self.subject_steps,
            "complete": self.complete,
            "flaws": self.flaws,
        }


def federation_claim(paths: list[Path]) -> FederationClaim:
    """The claim of a federation from its silos' ledgers.

    Guarantee: ε of the steps that were charged in the s silos with most of them, for the plan's s.
    A silo whose ledger is missing is charged with all its planned steps.

    Raises:
        UseError: no ledgers, one that was edited, or ledgers of different federations.
    """
    if not paths:
        raise UseError("a claim needs at least one silo's ledger")
    plan: FederationPlan | None = None
    steps: dict[int, int] = {}
    for path in paths:
        entries = read_entries(path)
        if not entries or entries[0].get("schema") != SCHEMA:
            raise UseError(f"{path} is not a silo's ledger of schema {SCHEMA}")
        found = FederationPlan.from_dict(entries[0]["plan"])
        if plan is not None and found != plan:
            raise UseError(f"{path} belongs to another federation than {paths[0]}")
        plan = found
        expected = asdict(LocalStep.of_plan(plan))
        for entry in entries:
            if entry["kind"] == "attempt" and any(entry[k] != v for k, v in expected.items()):
                raise UseError(f"a step of round {entry['round']} in {path} is not the plan's")
        silo = int(entries[0]["silo"])
        if silo in steps:
            raise UseError(f"{path} is a second ledger of silo {silo}")
        steps[silo] = sum(_steps_by_round(entries).values())
    assert plan is not None
    planned = [plan.local_steps * rounds for rounds in plan.rounds_of_silos]
    charged = [steps.get(silo, planned[silo]) for silo in range(plan.silos)]
    most = sum(sorted(charged, reverse=True)[: plan.silos_per_subject])
    return FederationClaim(
        guarantee=plan.guarantee(subject_steps=most),
        steps=steps,
        subject_steps=most,
        complete=charged == planned and len(steps) == plan.silos,
        flaws=plan.flaws,
    )


def _steps_by_round(entries: list[dict[str, Any]]) -> dict[int, int]:
    rounds: Counter[int] = Counter()
    for entry in entries:
        if entry["kind"] in ("round", "attempt"):
            rounds[int(entry["round"])] += entry["kind"] == "attempt"
    return dict(rounds)
