"""What the claim of a store rests on: all that the claims of what was charged in it rest on.

A store's total is of everything that was released of its people. So where one of its runs, answers
or selections may have been chosen by an exact number, the total holds only if it was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from userdp.claims.conditions import COPIED, Condition, ConditionKind, looked_at, of_plan
from userdp.claims.lineage import lineage_from
from userdp.claims.parts import Filtered, OfSeries, Part
from userdp.ledger.charges import Charge, Released
from userdp.ledger.history import History


def conditions_of(history: History, parts: Iterable[Part]) -> tuple[Condition, ...]:
    """The conditions of a ledger's charges, those of the base models of its runs left out.

    * Plan and options of a run, ε and kind of an answer: that no exact number chose them that was
      shown before they were fixed (`History.fixed_at`; an answer is fixed when it is charged). In
      a filter or a series also *whether* a charge takes place has to follow from releases alone,
      so that there each counts from its own line.
    * What a plan itself was made from.
    * What was shown while somebody's own loop was open or interrupted.
    * What the released models' own claims rest on besides: a sweep's winner by exact losses, say.

    Args:
        history: of the ledger; only what is in its ``charges`` counts.
        parts: what they paid for.
    """
    charges = list(history.charges.values())
    shared = any(isinstance(part, Filtered | OfSeries) for part in parts)
    fixed = (one.at if shared else _fixed_at(history, one) for one in charges)
    looks = set(history.looked_before(max(fixed, default=0)))
    told = {COPIED} if history.copied else set()
    for charge in charges:
        looks |= history.looked_during(charge)
        selected = charge.selection.plans if charge.selection is not None else ()
        for plan in (charge.plan, *selected):
            told |= set(of_plan(plan))
    for released in _released_by(history):
        lineage = lineage_from(released.lineage, what="what weights descend from")
        # A total is of all runs, so that it does not matter which of them was chosen.
        told |= {one for one in lineage.conditions if one.kind is not ConditionKind.CHOSEN}
    return tuple(sorted({*told, *looked_at(looks)}))


def in_one(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The same, with all exact numbers that were shown in one condition."""
    conditions = list(conditions)
    looks = [one for one in conditions if one.kind is ConditionKind.LOOKS]
    names = {name for one in looks for name in one.told.split(", ")}
    others = [one for one in conditions if one.kind is not ConditionKind.LOOKS]
    return tuple(sorted({*others, *looked_at(names)}))


def _fixed_at(history: History, charge: Charge) -> int:
    """The line at which what was charged was fixed."""
    if charge.query_epsilon is not None or charge.selection is not None or charge.again:
        return charge.at
    return history.fixed_at(charge.constants, charge.at)


def _released_by(history: History) -> Iterator[Released]:
    """The weights that the charges of a ledger and their sweeps released.

    Not those of a private selection's trials: of them the winner alone leaves, whose own line says
    what it rests on.
    """
    constants = {charge.constants for charge in history.charges.values()}
    sweeps = (name for name, (_, grid) in history.sweeps.items() if constants.intersection(grid))
    known = {*history.charges, *sweeps}
    return (one for one in history.released if one.run_id in known)
