"""Who may go on with a run, and what a run costs that ends early.

Of all folders of a run, copies and earlier states included, the one that was opened last may go on.
"""

from __future__ import annotations

from userdp.core.errors import UseError
from userdp.ledger.lines import Open
from userdp.ledger.store_history import History


def require_last(history: History, line: Open) -> None:
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


def why_whole(history: History) -> str | None:
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
    return None
