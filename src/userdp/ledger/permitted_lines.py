"""Which line may follow in a store's ledger, who may go on with a run, and what says nothing new.

Of all folders of a run, copies and earlier states included, the one that was opened last may go on.

The budget of a store's people is a *filter*, fixed before the first charge and the first look, for
the store's life. It counts Rényi divergences of one order (`userdp.accounting.filters`), and claims
the whole budget from the first charge on. Without one, charges add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from userdp.accounting.filters import RenyiFilter
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, epsilon_up
from userdp.ledger.lines import (
    Answer,
    BeginTuning,
    Charge,
    Line,
    Open,
    OpenBudget,
    Release,
    Settle,
    Trial,
)
from userdp.ledger.store_history import History, fold


def follow(history: History, lines: Iterable[Line]) -> History:
    """A ledger after lines that are to follow; those that say nothing new are left out.

    Raises:
        UseError: one may not follow, or the people would be charged beyond their budget.
    """
    before = len(history.charges)
    for line in lines:
        if is_new(history, line):
            history = fold((*history.lines, line), history.path)
    if len(history.charges) > before and history.budget is not None:
        _require_within(history, history.budget.filter)
    return history


def is_new(history: History, line: Line) -> bool:
    """Whether a line has to be written; False where the ledger says the same already.

    Raises:
        UseError: it may not follow the lines that are there.
    """
    if isinstance(line, Open | Settle | Release | Answer) and line.run_id not in history.ids:
        raise UseError(f"nothing in {history.path} paid for {line.run_id}")
    match line:
        case BeginTuning(run_id=run_id) if run_id in history.tunings:
            if history.tunings[run_id][1].constants != line.constants:
                raise UseError(
                    "the base model is not the one that this tuning began with: trials that began "
                    "from another could not be compared, and their price would be another",
                    hint="put the base model back, or begin a new tuning",
                )
            return False
        case Charge(run_id=run_id):
            return run_id not in history.charges
        case Trial():
            return _takes_its_slot(history, line)
        case Open():
            _require_last(history, line)
        case Settle(run_id=run_id):
            return run_id not in history.settled
        case Release():
            return line not in history.released
        case Answer(run_id=run_id):
            return run_id not in history.answers
        case OpenBudget():
            _require_unused(history)
    return True


def _require_last(history: History, line: Open) -> None:
    """`UseError` unless a run may go on in the folder that an opening is made in.

    Guarantee (invariant 12): of all folders of a run, the copies included, at most one is accepted
    once the opening is written: the one that holds its nonce.
    """
    run_id = line.run_id
    _, ended = history.settled.get(run_id, (0, None))
    if ended is not None:
        how = "settled before its end" if ended.early else "finished"
        raise UseError(
            f"run {run_id} was {how}, as {history.path} says: its steps are over, and this "
            "folder is of before that",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    last = history.openings.get(run_id)
    if line.after != (last.nonce if last is not None else ""):
        raise UseError(
            f"the folder of run {run_id} is not the one that was opened last, as {history.path} "
            "says: it is a copy, or it or the store was put back to an earlier state. Going on "
            "would release more noisy steps than were charged",
            hint="go on in the folder that was opened last; or settle this run (`userdp store "
            "settle`) and train again in another --out, at the price of a plan of its own",
        )


def _takes_its_slot(history: History, line: Trial) -> bool:
    """Whether a trial takes its slot now; False where it did before."""
    drawn = [tuning.slots.get(line.slot) for _, tuning in history.tunings.values()]
    taken = {trial.slot: trial.run_id for trial in history.trials.values()}
    if line.constants not in drawn or taken.get(line.slot, line.run_id) != line.run_id:
        raise UseError(
            f"no private selection in {history.path} pays for this trial: its slot was drawn for "
            "other settings, or taken before",
            hint="put the trial's folder back and go on with the tuning, or begin a new one",
        )
    return line.slot not in taken


def _require_unused(history: History) -> None:
    """`UseError` if something was charged, tuned or looked at before, or a budget was opened."""
    if history.budget or history.charges or history.looks or history.tunings:
        raise UseError(
            f"{history.path} has a budget already, or something was charged or looked at in it: a "
            "budget that is opened after a look bounds nothing",
            hint="open one before anything else is done with a store; it holds for the store's "
            "life: see `userdp store budget STORE`",
        )


def _require_within(history: History, opened: RenyiFilter) -> None:
    """`UseError` if all charges, the last included, exceed what was fixed before the first."""
    path = history.path
    # What counts people in different ways does not add up to anything.
    if len({charge.pays_for.guarantee().adjacency for charge in history.charges.values()}) > 1:
        raise UseError(
            f"{path} would hold charges of different adjacencies, and no total bounds their sum",
            hint="keep records of several owners in a store of their own",
        )
    *before, new = history.costs(opened).values()
    if opened.admits([*before, new]):
        return
    if math.isinf(new.rho):
        why, way = "this has no epsilon", "do it on another store, of other people"
    elif opened.admits([*before, replace(new, delta=0.0)]):
        share = delta_up(opened.reserved_delta)
        why = f"of that {share} is reserved for what is known by its own epsilon and delta only"
        way = "a smaller --delta; or sample users or examples, which need none of the reserve"
    else:
        needed, left = new.rho / opened.capacity, opened.left(before) / opened.capacity
        why = f"this needs {100 * needed:.1f} % of it, and {100 * left:.1f} % is left"
        way = "plan with more noise or fewer steps: `userdp store budget STORE` says what is left"
    raise UseError(
        f"{path} would be charged beyond its budget of epsilon {epsilon_up(opened.epsilon)} at "
        f"delta {delta_up(opened.delta)}, which is never raised: {why}",
        hint=way,
    )
