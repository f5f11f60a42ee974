"""From ledgers to a lineage: what a run, or constants that somebody chose, descend from.

A run descends from its own steps, from its base model, and from what was released of the same
people before its constants were recorded, since they may have been chosen by that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from userdp.claims.conditions import (
    COPIED,
    Condition,
    ConditionKind,
    among_runs,
    looked_at,
    of_plan,
)
from userdp.claims.lineage import Lineage, lineage_from, of_parts
from userdp.claims.parts import Choice, Part, Steps, Unclaimed
from userdp.claims.payers import parts_of, read_payer
from userdp.codec import digest
from userdp.errors import UseError
from userdp.ledger import run as run_ledger
from userdp.ledger.charges import Charge
from userdp.ledger.history import History
from userdp.plans import Plan, StepRecord


def run_lineage(path: Path, entries: list[dict[str, Any]]) -> Lineage:
    """What the model of a run descends from, the run itself included."""
    header = entries[0]
    plan = run_ledger.plan_of(path, entries)
    inherited = lineage_from(header["lineage"], what=f"the lineage in {path}")
    # The run was charged in the ledger that it inherits from, within the same total.
    own = Lineage(parts=(_own_part(path, entries, plan),), within=inherited.within)
    finish = run_ledger.finish_of(entries) or {}
    conditions = {*of_plan(plan), *looked_at(finish.get("looks", ()))}
    conditions |= {COPIED} if run_ledger.is_copied(entries) else set()
    conditions |= set(_chosen(entries))
    since = finish.get("since")
    told = lineage_from(since, what=f"what was released meanwhile, in {path}") if since else None
    return inherited + own + (told or Lineage()) + Lineage(conditions=tuple(conditions))


def _chosen(entries: list[dict[str, Any]]) -> Iterator[Condition]:
    """That a run was not chosen among others: as was found last, or as a sweep's trial is."""
    found = next((one for one in reversed(entries) if one["kind"] == "chosen"), None)
    if found is not None:
        yield among_runs(found["runs"], found["looks"])
    elif entries[0].get("sweep"):
        yield Condition(kind=ConditionKind.CHOSEN, told="the trials of a sweep")


def inherited(history: History, run_id: str, constants: str) -> Lineage:
    """What constants descend from that were recorded when ``run_id`` was charged.

    What `StoreLedger.declare` recorded earlier was not chosen by anything after that; see
    `inherited_at`.
    """
    own = history.charges.get(run_id)
    begun = history.lines if own is None else own.at
    return inherited_at(history, history.fixed_at(constants, begun))


def inherited_at(history: History, at: int) -> Lineage:
    """What constants descend from that were recorded at line ``at`` of a store's ledger.

    All that was released of these people before is a part: the constants may have been chosen by
    it. All that showed an exact number before is a condition.
    """
    earlier = [charge for charge in history.charges.values() if charge.at < at]
    conditions = [COPIED] if history.copied else []
    conditions += looked_at(history.looked_before(at))
    return _shown_by(history, earlier, *conditions)


def charged_since(history: History, own: Charge) -> Lineage:
    """What was released of these people since a run was charged, other than by the run itself.

    Whoever takes a run's steps in a loop of their own may choose by it what nobody recorded: the
    next learning rate, what becomes of the noisy sums, or the weights that the run goes on from.
    """
    later = (one for one in history.charges.values() if one.at > own.at)
    return _shown_by(history, [one for one in later if one.again != own.run_id])


def _shown_by(history: History, charges: Sequence[Charge], *conditions: Condition) -> Lineage:
    """What was released by charges of a store's ledger, and by the bases of their models."""
    # What has no price is a look: a condition. What it was used for is the operator's to say.
    parts = parts_of(history, charges)
    parts = [part for part in parts if math.isfinite(part.guarantee().epsilon)]
    shown = of_parts(parts, *conditions, within=history.within)
    for base in bases_of(history, charges):  # what a run here released also shows its base
        shown += _priced(base)
    return shown


def bases_of(history: History, charges: Iterable[Charge]) -> Iterator[Lineage]:
    """What the models descend from that runs began from, or that answers were about.

    The trials of a private selection are charged in one line, and each has a base of its own.
    """
    for charge in charges:
        slots = history.slots.get(charge.run_id, {})
        trials = [history.taken[slot] for slot in slots if slot in history.taken]
        for base in (charge.base, *(history.bases.get(trial) for trial in trials)):
            if base:
                yield lineage_from(base, what=f"the base of {charge.run_id}")


def _priced(base: Lineage) -> Lineage:
    """What has a price of a base; what an answer or a run shows of the rest is a condition."""
    priced = (part for part in base.parts if math.isfinite(part.guarantee().epsilon))
    apart = (one for one in base.apart if math.isfinite(one.part.guarantee().epsilon))
    return replace(of_parts(priced, *base.conditions), apart=tuple(apart))


def _own_part(path: Path, entries: list[dict[str, Any]], plan: Plan | None) -> Part:
    header = entries[0]
    run_id = str(header["run_id"])
    if plan is None:
        return Unclaimed(id=run_id, why="training without privacy")
    # Lines that do not say what drew their noise may stand for float32 noise, which has no ε.
    unknown_noise = run_ledger.samplers_of(entries) is None
    if unknown_noise or header["facts"].get("unsafe_seeds"):
        why = "noise of an unknown sampler" if unknown_noise else "training with a known seed"
        return Unclaimed(id=run_id, why=why)
    judged = set[str]()  # most attempts of a run say the same, and there are thousands
    for entry in entries:
        said = repr({name: value for name, value in entry.items() if name != "attempt"})
        if entry["kind"] == "attempt" and said not in judged:
            _refuse_other_step(path, entry, plan)
            judged.add(said)
    finish = run_ledger.finish_of(entries)
    if finish is not None and finish["digests"].get("plan") != digest(plan):
        raise UseError(
            f"the finishing line of {path} is of another plan than its first line: the ledger was "
            "edited, and no epsilon can be claimed from it",
        )
    if header.get("trial"):
        return Unclaimed(id=run_id, why="a trial of a private selection")
    if header.get("payer"):
        return read_payer(path, header["payer"], plan)
    tuning = run_ledger.tuning_of(path, entries)
    if tuning is not None:
        return Choice(id=run_id, tuning=tuning)
    further = tuple(one for one in run_ledger.charges_in(entries) if one != run_id)
    return Steps(id=run_id, plan=plan, further=further)


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
