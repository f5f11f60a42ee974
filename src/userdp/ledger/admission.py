"""What may follow in a store's ledger: when a line of each kind may, and who may go on with a run.

What its budget refuses, `userdp.ledger.budget` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from userdp.core.errors import UseError
from userdp.ledger.budget import refuse_beyond, refuse_used
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
        case Open(run_id=run_id):
            require_last(history, run_id, {line.after} - {""})
        case Settle(run_id=run_id):
            why = why_whole(history, run_id) if line.early and not line.whole else None
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


def require_last(history: History, run_id: str, known: Collection[str]) -> None:
    """`UseError` unless a run may go on in the folder that holds the nonces ``known``.

    Guarantee (invariant 12): of all folders of a run, the copies included, at most one is accepted
    once `userdp.ledger.lines.Open` is written: the one that holds its nonce.

    Args:
        history: of the ledger that the run is charged in.
        run_id: of the charge, or a trial's.
        known: none if the folder was never opened.
    """
    ended, last = history.settled.get(run_id), history.openings.get(run_id)
    if ended is not None:
        how = "settled before its end" if ended.early else "finished"
        raise UseError(
            f"run {run_id} was {how}, as {history.path} says: its steps are over, and this "
            "folder is of before that",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    if last.nonce not in known if last is not None else known:
        raise UseError(
            f"the folder of run {run_id} is not the one that was opened last, as {history.path} "
            "says: it is a copy, or it or the store was put back to an earlier state. Going on "
            "would release more noisy steps than were charged",
            hint="go on in the folder that was opened last; or pay for the whole plan once "
            "more: --resume --set run.charge_again=true",
        )


def why_whole(history: History, run_id: str) -> str | None:
    """Why a run that stops here costs its whole plan, as a clause; None where its attempts do.

    When a run stopped may have been chosen by what it released. Under a filter that is allowed:
    each of its steps is a release of its own, and the filter holds wherever the releases end
    (`userdp.accounting.filters`). But *only* what was charged to the filter may have chosen it. So
    the steps that did not run are given back where the ledger shows no exact number of these
    people's text. Whoever read the text itself, or timed the steps, and stopped the run by that,
    knows what no ledger shows; docs/budgets.md says so.
    """
    if history.budget is None:
        return "the store has no budget with a filter, and the moment may have been chosen"
    if looked := history.looked_before(len(history.lines)):
        looks = ", ".join(sorted(looked))
        return f"exact numbers were shown ({looks}), which may have chosen the moment"
    if history.copied:
        return "the ledger was copied or moved, so that another copy may hold a look"
    further = [one for one in history.charges.values() if one.again]
    if any(run_id in (one.again, one.run_id) for one in further):
        return "the run was charged more than once, so that copies of its folder may have gone on"
    return None
