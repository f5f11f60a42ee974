"""From a ledger to the claim: ε is recomputed from what ran, and from nothing else."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from userdp.accounting.mechanisms import NoisySteps
from userdp.errors import UseError
from userdp.ledger import run as run_ledger
from userdp.ledger import store as store_ledger
from userdp.ledger.folder import LEDGER
from userdp.ledger.journal import read_entries
from userdp.plan import Plan, StepRecord
from userdp.sampling import poisson
from userdp.vocabulary import MIXED, NONE, Adjacency, Guarantee, PrivacyUnit, require_delta

_ONE_MECHANISM = "steps of one mechanism"
_TRIAL = "a trial of a private selection"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A guarantee, and what it was computed from.

    Args:
        guarantee: the claim; ε is infinite where a part of it has none.
        subject: ``"run"`` or ``"store"``.
        steps: attempted steps that are charged.
        runs: the number of runs composed.
        complete: every planned step ran (run), or every run settled (store).
        composition: how parts were put together.
        mechanism: what the claim prices, where one mechanism is all of it and its price is finite;
            None for a winner of a tuning, a sum over several charges, and where nothing is claimed.
        plan: of the single run that this is the claim of; None without one.
    """

    guarantee: Guarantee
    subject: str
    steps: int
    runs: int
    complete: bool
    composition: str
    mechanism: NoisySteps | None = None
    plan: Plan | None = None

    @property
    def is_of_plan(self) -> bool:
        """Whether ε prices the run's plan and nothing else: not so for the winner of a tuning."""
        return self.composition == _ONE_MECHANISM

    @property
    def is_of_trial(self) -> bool:
        """Whether it is a trial of a private selection: operator-only, and without a claim."""
        return self.composition == _TRIAL

    def to_dict(self) -> dict[str, Any]:
        """The claim as plain values, for JSON."""
        names = ("subject", "steps", "runs", "complete", "composition")
        return asdict(self.guarantee) | {name: getattr(self, name) for name in names}


def claim(path: Path, *, delta: float | None = None) -> Claim:
    """The claim of a run ledger or a store ledger, or of the folder that holds one.

    Guarantee: for a run, the ε of the attempted steps at ``delta`` (the plan's own by default); a
    run whose sampling or noise had a known seed, or whose lines do not name a sampler of noise that
    the plan's price knows, claims nothing. The winner of a tuning claims what
    the tuning costs, whole; a trial of a private selection, which is nobody's but the operator's,
    claims nothing. For a store, runs are added up by
    basic composition: the parameters of a later run may have been chosen after seeing an earlier
    one, and sums of pre-fixed (ε_i, δ_i) stay valid then.

    Raises:
        UseError: there is no ledger at ``path``, or it was edited.
    """
    if delta is not None:
        require_delta(delta)
    if path.is_dir():
        path = path / LEDGER
    return claim_of(path, read_entries(path), delta=delta)


def claim_of(path: Path, entries: list[dict[str, Any]], *, delta: float | None = None) -> Claim:
    """`claim` of the entries of the ledger at ``path``, for callers that have read them already."""
    if not entries:
        raise UseError(f"the ledger {path} is empty: nothing was ever charged in it")
    if entries[0].get("kind") == "store":
        return _store_claim(store_ledger.charges_of(path, entries), delta)
    return _run_claim(path, entries, delta)


def _run_claim(path: Path, entries: list[dict[str, Any]], delta: float | None) -> Claim:
    plan = run_ledger.plan_of(path, entries)
    steps = run_ledger.count_attempts(entries)
    composition = _ONE_MECHANISM
    if plan is None:
        guarantee = _no_claim(delta or 0.0)
    else:
        # Lines that do not say what drew their noise may stand for float32 noise, which has no ε.
        unknown_noise = run_ledger.samplers_of(entries) is None
        void = unknown_noise or bool(entries[0]["facts"].get("unsafe_seeds"))
        for entry in entries:
            if entry["kind"] == "attempt" and not unknown_noise:
                _refuse_other_step(path, entry, plan)
        tuning = run_ledger.tuning_of(path, entries)
        if tuning is not None and not void:
            guarantee, composition = tuning.guarantee(delta=delta), tuning.in_words
        elif "trial_of" in entries[0]:
            guarantee, composition = _no_claim(delta or 0.0), _TRIAL
        else:
            guarantee = plan.guarantee(steps, delta=delta, void=void)
    return Claim(
        guarantee=guarantee,
        subject="run",
        steps=steps,
        runs=1,
        complete=plan is not None and steps == plan.steps,
        composition=composition,
        mechanism=_mechanism(plan, steps, guarantee) if composition == _ONE_MECHANISM else None,
        plan=plan,
    )


def _mechanism(plan: Plan | None, steps: int, guarantee: Guarantee) -> NoisySteps | None:
    """The steps that were charged as one mechanism, if they claim anything."""
    if plan is None or steps == 0 or math.isinf(guarantee.epsilon):
        return None
    return plan.mechanism.with_steps(steps)


def _store_claim(charges: list[store_ledger.Charge], delta: float | None) -> Claim:
    planned = sum(charge.plan is not None or charge.selection is not None for charge in charges)
    share = delta / planned if delta and planned else None
    parts = [_part(charge, share) for charge in charges]
    claimed = [part for part in parts if math.isfinite(part.epsilon)]
    adjacencies = {part.adjacency for part in claimed}
    if len(parts) == 1:
        guarantee = parts[0]
    else:
        samplings = {part.sampling for part in parts}
        mixed = len(adjacencies) > 1  # a sum over different adjacencies bounds neither
        guarantee = Guarantee(
            epsilon=math.inf if mixed else math.fsum(part.epsilon for part in parts),
            delta=min(math.fsum(part.delta for part in parts), math.nextafter(1.0, 0.0)),
            unit=PrivacyUnit.USER,
            adjacency=next(iter(adjacencies)) if len(adjacencies) == 1 else Adjacency.ADD_OR_REMOVE,
            sampling=samplings.pop() if len(samplings) == 1 else MIXED,
            accountant=" + ".join(sorted({part.accountant for part in parts})),
        )
    single = charges[0] if len(charges) == 1 else None
    return Claim(
        guarantee=guarantee,
        subject="store",
        steps=sum(charge.steps for charge in charges),
        runs=len(charges),
        complete=all(charge.settled for charge in charges),
        composition="basic composition of runs" if len(charges) > 1 else "one run",
        mechanism=_mechanism(single.plan, single.steps, guarantee) if single else None,
        plan=single.plan if single else None,
    )


def _part(charge: store_ledger.Charge, delta: float | None) -> Guarantee:
    """What one line of a store ledger guarantees."""
    if charge.query_epsilon is not None:  # every user is asked: q = 1
        return Guarantee(
            epsilon=charge.query_epsilon,
            delta=0.0,
            unit=PrivacyUnit.USER,
            adjacency=Adjacency.ADD_OR_REMOVE,
            sampling=poisson(PrivacyUnit.USER).kind,
            accountant="pure",
        )
    if charge.selection is not None:
        return charge.selection.guarantee(delta=delta)
    if charge.plan is None:
        return _no_claim(0.0)
    return charge.plan.guarantee(charge.steps, delta=delta)


def _refuse_other_step(path: Path, entry: dict[str, Any], plan: Plan) -> None:
    step = run_ledger.step_of(entry)
    expected = StepRecord.of_plan(
        plan, l2_clip_norm=step.l2_clip_norm, noise_sampler=step.noise_sampler
    )
    for name in (field.name for field in fields(StepRecord)):
        recorded = getattr(step, name)
        if recorded != getattr(expected, name):
            raise UseError(
                f"attempt {entry['attempt']} in {path} has {name} {recorded!r}, the plan says "
                f"{getattr(expected, name)!r}: no epsilon can be claimed from this ledger"
            )


def _no_claim(delta: float) -> Guarantee:
    return Guarantee(
        epsilon=math.inf,
        delta=delta,
        unit=PrivacyUnit.USER,
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling=NONE,
        accountant="none",
    )
