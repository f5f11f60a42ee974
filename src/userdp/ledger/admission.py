"""Which line may follow in a store's ledger, and which says nothing new.

`userdp.ledger.continuation` says who may go on with a run, and `userdp.ledger.budget` which charge
a budget refuses.
"""

from __future__ import annotations

from collections.abc import Iterable

from userdp.core.errors import UseError
from userdp.ledger.budget import refuse_beyond, refuse_used
from userdp.ledger.continuation import require_last, why_whole
from userdp.ledger.lines import (
    Answer,
    BeginTuning,
    Charge,
    Declare,
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
            require_last(history, line)
        case Settle(run_id=run_id):
            why = why_whole(history) if line.early and not line.whole else None
            if why and run_id not in history.settled:  # a look came while the run was stopped
                raise UseError(f"run {run_id} costs its whole plan: {why}", hint="settle it again")
            return run_id not in history.settled
        case Release():
            return line not in history.released
        case Answer(run_id=run_id):
            return run_id not in history.answers
        case Declare(constants=constants):
            return constants not in history.declared
        case OpenBudget():
            refuse_used(history)
        case Store() | BeginTuning() | Charge() | Look():
            pass
        case _:
            raise NotImplementedError(f"nobody said when a line of kind {line.kind} may follow")
    return True


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
