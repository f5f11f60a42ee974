"""What ledgers say that a model descends from (`userdp.claims.lineage`).

The ledger of a store knows everything that was released of its people, in order. A run descends
from what was released before its constants were recorded, since they may have been chosen by that
(`inherited`). The ledger of a run knows its own steps and what it inherited (`run_lineage`).
Only the store's ledger knows of later runs, among which a run may have been chosen
(`chosen_among`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from userdp.claims.lineage import (
    COPIED,
    Condition,
    ConditionKind,
    Lineage,
    about,
    lineage_from,
    of_parts,
    of_plan,
)
from userdp.core.errors import UserdpError
from userdp.ledger import Charge, History, RunRecord, StoreLedger
from userdp.ledger.charged_parts import Part, Query, Steps, Unclaimed, of_budget
from userdp.ledger.lines import Chosen, Open, Release

# A store with a budget pays every line of its ledger by its filter; without one, charges add up
# (basic composition).


def parts_of(history: History, charges: Iterable[Charge]) -> list[Part]:
    """What lines of a store's ledger paid for, each part once.

    A budget is one part as a whole, as soon as it pays for one of the lines.
    """
    paid = (payer_of(history, charge.pays_for) for charge in charges)
    return list({part.id: part for part in paid}.values())


def payer_of(history: History, part: Part) -> Part:
    """What pays for a part that is charged in a ledger: the budget of its people, or itself."""
    opened = history.budget
    return part if opened is None else of_budget(opened.run_id, opened.filter, part)


def inherited(history: History, run_id: str) -> Lineage:
    """What the constants descend from that were recorded when ``run_id`` was charged."""
    return lineage_between(history, before=history.at.get(run_id))


def lineage_between(history: History, *, after: int = -1, before: int | None = None) -> Lineage:
    """What may have followed what a store's ledger tells of between two lines.

    All that was released of these people there is a part, of its runs' base models too. All that
    showed an exact number is a condition, as it is that the ledger is a copy.
    """
    charges = history.charged(after=after, before=before)
    looks = about(ConditionKind.LOOKS, history.looked(after=after, before=before))
    # What has no price is a look: a condition. What it was used for is the operator's to say.
    own = filter(_is_priced, parts_of(history, charges))
    lineage = of_parts(own, *looks, *((COPIED,) if history.copied else ()))
    for base in bases_of(history, charges):  # what a run here released also shows its base
        lineage += of_parts(filter(_is_priced, base.parts), *base.conditions)
    return lineage


def _is_priced(part: Part) -> bool:
    return math.isfinite(part.guarantee().epsilon)


def bases_of(history: History, charges: Iterable[Charge]) -> Iterator[Lineage]:
    """What the models descend from that runs began from, or that answers were about.

    The trials of a private selection are charged in one line, and each has a base of its own.
    """
    for charge in charges:
        _, tuning = history.tunings.get(charge.run_id, (0, None))
        slots = {} if tuning is None else tuning.slots
        trials = [one for one in history.trials.values() if one.slot in slots]
        for base in (charge.base, *(trial.base for trial in trials)):
            if base:
                yield lineage_from(base, what=f"the base of {charge.run_id}")


def store_conditions(history: History) -> tuple[Condition, ...]:
    """The conditions of a ledger's charges, those of the base models of its runs left out.

    A store's total is of everything that was released of its people. So where one of its runs,
    answers or selections may have been chosen by an exact number, the total holds only if it was
    not:

    * Plan and options of a run, ε and kind of an answer: that no exact number chose them that was
      shown before they were charged. In a filter also *whether* a charge takes place has to follow
      from releases alone.
    * What a plan itself was made from.
    * What was shown while somebody's own loop was open or interrupted.
    * What the released models' own claims rest on besides: a tuning's winner by exact losses, say.

    Args:
        history: of the ledger; only what is in its ``charges`` counts.
    """
    charges = history.charges.values()
    last = max((history.at[one.run_id] for one in charges), default=0)
    looks = set(history.looked(before=last))
    told = {COPIED} if history.copied else set()
    for charge in charges:
        looks |= history.looked_during(charge)
        told.update(one for plan in charge.pays_for.plans for one in of_plan(plan))
    # Not those of a private selection's trials: of them the winner alone leaves, whose own line
    # says what it rests on.
    constants = {charge.constants for charge in charges}
    tunings = (one for _, one in history.tunings.values() if constants.intersection(one.constants))
    known = {*history.charges, *(one.run_id for one in tunings)}
    for released in history.released:
        if released.run_id in known:
            lineage = lineage_from(released.lineage, what="what weights descend from")
            # A total is of all runs, so that it does not matter which of them was chosen.
            told |= {one for one in lineage.conditions if one.kind is not ConditionKind.CHOSEN}
    return tuple(sorted({*told, *about(ConditionKind.LOOKS, looks)}))


# What a run's own ledger says.


def run_lineage(run: RunRecord, chosen: str | None = None) -> Lineage:
    """What the model of a run descends from, the run itself included.

    Args:
        run: the run.
        chosen: what it may have been chosen among, as its people's store says (`chosen_among`); by
            default as its own ledger does, which of a tuning's trial knows it from the start.
    """
    inherited = lineage_from(run.begin.lineage, what=f"the lineage in {run.folder.ledger}")
    choices = [chosen] if chosen else [line.told for line in run.of(Chosen)]
    if run.begin.tuning_id and not choices:
        choices = ["the trials of a tuning"]
    conditions = [Condition(kind=ConditionKind.CHOSEN, told=one) for one in choices]
    if any(opening.copied for opening in run.of(Open)):
        conditions.append(COPIED)
    own = of_parts([_own_part(run)], *of_plan(run.plan), *conditions)
    since = Lineage()
    if run.finish is not None and run.finish.since:
        since = lineage_from(run.finish.since, what=f"released meanwhile, in {run.folder.ledger}")
    return inherited + own + since


def _own_part(run: RunRecord) -> Part:
    if run.begin.payer is not None:
        return run.begin.payer
    if run.plan is None:
        return Unclaimed(id=run.run_id)
    return Steps(id=run.run_id, plan=run.plan)


_OF_MODELS = {"audit", "evaluate", "generate --check", "personalize", "predict", "tune"}
"""Looks that tell models apart; others tell of text."""


def store_of(run: RunRecord) -> History | None:
    """What the store of a run's people knows; None where it is not here, or not to be read."""
    with suppress(UserdpError):  # the file that names it is the operator's, and others read claims
        for store in filter(Path.is_dir, run.folder.stores or ()):
            with suppress(UserdpError):  # one that is damaged knows nothing
                history = StoreLedger(store).history()
                if run.run_id in history.ids:
                    return history
    return None


def meanwhile(run: RunRecord, history: History | None) -> Lineage:
    """What a loop of somebody's own may have followed that has not ended: its own ledger tells it
    at the end only, and its store at any time.
    """
    charge = history.charges.get(run.run_id) if history else None
    if history is None or charge is None or not charge.steered or run.finish is not None:
        return Lineage()
    ended, _ = history.settled.get(run.run_id, (None, None))
    return lineage_between(history, after=history.at[run.run_id], before=ended)


def chosen_among(run: RunRecord, history: History | None) -> str | None:
    """What a run may have been chosen among, in words, as the store of its people knows.

    A run's claim is of one run. Whoever trains several on the same people and shows the best of
    them shows a choice too: by exact numbers no ε covers it, and by what the runs released it costs
    what all of them cost together. A run's own ledger cannot know of runs that began after it, so
    that its people's store is asked. Every claim of a run is computed with it, and an export's
    ledger ends in it, since whoever has that has no store. By exact numbers a run may have been
    chosen among all runs of its store. What they released chose at no price only among those that
    no part of its claim pays for: a budget with a filter and a tuning pay for all of theirs.

    Args:
        run: the run.
        history: of that store (`store_of`).

    Returns:
        None where the run claims nothing, where nothing names the store, as in an export, and where
        the store knows of no choice.
    """
    if run.plan is None or isinstance(run.begin.payer, Unclaimed):
        return None
    if history is not None:
        return _among(run, history)
    with suppress(UserdpError):
        if run.folder.stores is None:
            return None
    return "other runs over the same people, of which only their store knows, and it is not here"


def _among(run: RunRecord, history: History) -> str | None:
    """The runs of a store among which one may have been chosen at no price; None if only itself."""
    # Of a tuning's winner its trials are one with it.
    begun, tuning = history.tunings.get(run.run_id, (0, None))
    grid = () if tuning is None else tuning.constants
    ended = next((at for at, line in history.of(Release) if line.run_id == run.run_id), None)
    trials = history.charged(after=begun, before=ended)
    ours = {one.run_id for one in trials if one.constants in grid}
    runs = [one for one in history.charged() if not isinstance(one.pays_for, Unclaimed | Query)]
    others = [one for one in runs if one.run_id not in {run.run_id, *ours}]
    if not others:
        return None
    first = min(history.at[one.run_id] for one in runs)
    looks = {what for at, what in history.looks if at > first and what in _OF_MODELS}
    looks |= {"train"} if any(one.logged for one in runs) else set()
    paid = {part.id for part in run_lineage(run).parts}
    if not looks and paid.issuperset(part.id for part in parts_of(history, others)):
        return None
    by = f"by exact numbers ({', '.join(sorted(looks))})" if looks else "by what they released"
    return f"{1 + len(others)} runs over the same people {by}"
