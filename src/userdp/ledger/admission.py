"""What may follow in a store's ledger: when a line of each kind may, and what the budget refuses.

A *filter* is fixed before the first charge and the first look, for the store's life. It counts
Rényi divergences of one order (`userdp.accounting.filters`), and claims the whole budget from the
first charge on. Without one, charges add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from userdp.accounting.filters import RenyiFilter
from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, epsilon_up, round_up
from userdp.ledger.lines import (
    Answer,
    BeginTuning,
    ChargeLine,
    Declare,
    Open,
    OpenBudget,
    Release,
    Score,
    Settle,
    StoreLine,
    Trial,
)
from userdp.ledger.parts import Unclaimed
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
        _refuse_beyond(history, history.budget.filter)
    return history


def is_new(history: History, line: StoreLine) -> bool:
    """Whether a line has to be written; False where the ledger says the same already.

    Raises:
        UseError: it may not follow the lines that are there.
    """
    match line:
        case BeginTuning():
            return _is_other(history, line)
        case ChargeLine():
            return _is_uncharged(history, line)
        case Open():
            return _is_paid(history, line.run_id)
        case Settle():
            return _is_end(history, line)
        case Release():
            return _is_paid(history, line.run_id) and line not in history.released
        case Trial():
            return _is_taker(history, line)
        case Score():
            if line.run_id not in history.trials:
                raise UseError(
                    f"run {line.run_id} is no trial of a private selection in {history.path}"
                )
            return line.run_id not in history.scores
        case Answer():
            charge = history.charge(line.run_id)
            if charge.statistic is None or charge.answer is not None:
                raise UseError(
                    f"{line.run_id} is no statistic in {history.path} that waits for its answer"
                )
        case Declare():
            return line.constants not in history.declared
        case OpenBudget():
            _refuse_used(history)
    return True


def _is_other(history: History, line: BeginTuning) -> bool:
    if line.run_id not in history.tunings:
        return True
    if history.tunings[line.run_id][1].constants != line.constants:
        raise UseError(
            "the base model is not the one that this tuning began with: trials that began "
            "from another could not be compared, and their price would be another",
            hint="put the base model back, or begin a new tuning",
        )
    return False


def _is_uncharged(history: History, line: ChargeLine) -> bool:
    known = history.charges.get(line.run_id)
    if known is None:
        return True
    if line.run_id not in history.tunings or known.line.pays_for != line.pays_for:
        raise UseError(f"{line.run_id} is already charged in {history.path}")
    return False  # the selection of a tuning that goes on


def _is_paid(history: History, run_id: str) -> bool:
    """True; `UseError` if nothing here paid for what has that id, a trial or a tuning too."""
    if run_id not in history.ids:
        raise UseError(f"{run_id} has no reservation in {history.path}: nothing here paid for it")
    return True


def _is_end(history: History, line: Settle) -> bool:
    """Whether a run ends by it; of an early one, what is given back was chosen by no look."""
    charge, run_id = history.charges.get(line.run_id), line.run_id
    if not _is_paid(history, run_id) or run_id in history.settled or charge is None:
        return run_id not in history.settled
    if not isinstance(charge.part, Unclaimed) and line.steps > charge.steps:
        raise UseError(f"run {run_id} reserved {charge.steps} steps and cannot settle {line.steps}")
    if line.early and not line.whole and (why := history.why_whole(run_id)):
        raise UseError(f"run {run_id} costs its whole plan: {why}", hint="settle it again")
    return True


def _is_taker(history: History, line: Trial) -> bool:
    taken = {trial.slot: trial.run_id for trial in history.trials.values()}
    if taken.get(line.slot, line.run_id) != line.run_id:
        raise UseError(
            "the slot of this trial was taken before: a second training in it would be a "
            "candidate that nobody paid for",
            hint="put the trial's folder back, or begin a new tuning",
        )
    return line.slot not in taken


def _refuse_used(history: History) -> None:
    """`UseError` if something was charged, declared, looked at or fixed in a ledger before."""
    path, budget = history.path, history.budget
    if budget is not None:
        raise UseError(
            f"{path} has a budget of epsilon {round_up(budget.filter.epsilon)} at delta "
            f"{delta_up(budget.filter.delta)} already: one that is opened after a look bounds "
            "nothing",
            hint="it holds for the store's life; see `userdp store budget STORE`",
        )
    if history.charges or history.looks or history.tunings:
        raise UseError(
            f"something was charged or looked at in {path} before: a budget that is opened after a "
            "look bounds nothing",
            hint="open it before anything else is done with the store",
        )


def _refuse_beyond(history: History, opened: RenyiFilter) -> None:
    """`UseError` if all charges, the last included, exceed what was fixed before the first."""
    path = history.path
    # What counts people in different ways does not add up to anything.
    if len({charge.part.neighbours for charge in history.charges.values()}) > 1:
        raise UseError(
            f"{path} would hold charges of different adjacencies, and no total bounds their sum",
            hint="keep records of several owners in a store of their own",
        )
    *before, new = (charge.cost(opened) for charge in history.charges.values())
    if opened.admits([*before, new]):
        return
    if math.isinf(new.rho):
        raise UseError(
            f"{path} has a budget of epsilon {epsilon_up(opened.epsilon)}, and this has no "
            "epsilon: it would make the whole budget worth nothing",
            hint="do it on another store, of other people",
        )
    if opened.admits([*before, replace(new, delta=0.0)]):
        raise UseError(
            f"{path} has a budget of delta {delta_up(opened.delta)}, of which "
            f"{delta_up(opened.reserved_delta)} is reserved for what is known by its own epsilon "
            "and delta only, and this would need more of it",
            hint="plan with a smaller --delta; or sample users or examples, which need "
            "none of the reserve",
        )
    raise UseError(
        f"{path} would be charged beyond its budget of epsilon {epsilon_up(opened.epsilon)} at "
        f"delta {delta_up(opened.delta)}: this needs {100 * new.rho / opened.capacity:.1f} % of "
        f"the budget, and {100 * opened.left(before) / opened.capacity:.1f} % is left",
        hint="plan with more noise or fewer steps: `userdp store budget STORE` shows what is left, "
        "and what it buys. Budgets are for the store's life and are never raised",
    )
