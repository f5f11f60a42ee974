"""Which line may follow in a store's ledger, who may go on with a run, and what says nothing new.

Of all folders of a run, copies and earlier states included, the one that was opened last may go on.
`userdp.ledger.budget` says which charge a budget refuses.
"""

from __future__ import annotations

from collections.abc import Iterable

from userdp.core.errors import UseError
from userdp.ledger.budget import refuse_beyond, refuse_used
from userdp.ledger.lines import (
    Answer,
    BeginTuning,
    Charge,
    Look,
    Open,
    OpenBudget,
    Release,
    Settle,
    Store,
    StoreLine,
    Trial,
)
from userdp.ledger.store_history import History, fold


def follow(history: History, lines: Iterable[StoreLine]) -> History:
    """A ledger after lines that are to follow; those that say nothing new are left out.

    Raises:
        UseError: one may not follow, or the people would be charged beyond their budget.
    """
    before = len(history.charges)
    for line in lines:
        if is_new(history, line):
            history = fold((*history.lines, line), history.path)
    if len(history.charges) > before and history.budget is not None:
        refuse_beyond(history, history.budget.filter)
    return history


def is_new(history: History, line: StoreLine) -> bool:
    """Whether a line has to be written; False where the ledger says the same already.

    Raises:
        UseError: it may not follow the lines that are there.
    """
    path, charges = history.path, history.charges
    if isinstance(line, Open | Settle | Release | Answer) and line.run_id not in history.ids:
        raise UseError(f"{line.run_id} has no reservation in {path}: nothing here paid for it")
    match line:
        case BeginTuning(run_id=run_id) if run_id in history.tunings:
            if history.tunings[run_id][1].constants != line.constants:
                raise UseError(
                    "the base model is not the one that this tuning began with: trials that began "
                    "from another could not be compared, and their price would be another",
                    hint="put the base model back, or begin a new tuning",
                )
            return False
        case Charge(run_id=run_id) if run_id in charges:
            if run_id in history.tunings and charges[run_id].pays_for == line.pays_for:
                return False  # the selection of a tuning that goes on
            raise UseError(f"{run_id} is already charged in {path}")
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
            refuse_used(history)
        case Store() | BeginTuning() | Charge() | Look():
            pass
        case _:
            raise NotImplementedError(f"nobody said when a line of kind {line.kind} may follow")
    return True


def _require_last(history: History, line: Open) -> None:
    """`UseError` unless a run may go on in the folder that an opening is made in.

    Guarantee (invariant 12): of all folders of a run, the copies included, at most one is accepted
    once the opening is written: the one that holds its nonce.
    """
    run_id = line.run_id
    ended, last = history.settled.get(run_id), history.openings.get(run_id)
    if ended is not None:
        how = "settled before its end" if ended.early else "finished"
        raise UseError(
            f"run {run_id} was {how}, as {history.path} says: its steps are over, and this "
            "folder is of before that",
            hint="train again in another --out, with a plan and a budget of its own",
        )
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
    tunings = (tuning for _, tuning in history.tunings.values())
    if not any(one.slots.get(line.slot) == line.constants for one in tunings):
        raise UseError(
            f"no private selection in {history.path} pays for this trial: it has drawn no such "
            "slot, or one of other settings",
            hint="go on with the tuning: `userdp tune STORE --out DIR --resume`",
        )
    taken = {trial.slot: trial.run_id for trial in history.trials.values()}
    if taken.get(line.slot, line.run_id) != line.run_id:
        raise UseError(
            "the slot of this trial was taken before: a second training in it would be a "
            "candidate that nobody paid for",
            hint="put the trial's folder back, or begin a new tuning",
        )
    return line.slot not in taken
