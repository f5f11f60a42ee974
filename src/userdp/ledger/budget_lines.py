"""Lines of a store's ledger about many runs at once: totals, filters, series, and early ends."""

from __future__ import annotations

from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.codec import encode
from userdp.errors import UseError
from userdp.ledger.budget import refuse_beyond, refuse_used
from userdp.ledger.history import History, take
from userdp.ledger.settling import why_whole
from userdp.ledger.store_journal import StoreJournal, new_id, now
from userdp.plans import Series
from userdp.vocabulary import require_delta, require_positive


class BudgetLines(StoreJournal):
    """What is fixed for a store's life, or for a series of runs; and runs that end before that."""

    def declare_total(self, epsilon: float, delta: float) -> None:
        """Fix the total within which all charges here will stay; those beyond it are refused.

        Prices that are chosen one after another add up to a guarantee only within a total that was
        fixed before the first (a filter: Rogers et al. 2016).

        Raises:
            UseError: something was charged or looked at before.
        """
        require_positive("the total epsilon", epsilon)
        require_delta(delta)

        def compose(history: History) -> list[dict[str, Any]]:
            refuse_used(self.path, history, "a total")
            return [{"kind": "total", "epsilon": epsilon, "delta": delta}]

        self.append(compose)

    def open_budget(self, opened: RenyiFilter) -> None:
        """Fix a total and its filter, which all charges are counted by from now on.

        Guarantee: all that is released of these people satisfies (ε, δ) of the filter; charges that
        it does not admit are refused (`userdp.ledger.budget`).

        Raises:
            UseError: something was charged, declared or looked at before.
        """

        def compose(history: History) -> list[dict[str, Any]]:
            refuse_used(self.path, history, "a budget")
            return [{"kind": "budget", "run_id": new_id(), "filter": encode(opened), "when": now()}]

        self.append(compose)

    def declare_series(self, series: Series) -> str:
        """Fix a series of runs, which those of its price are part of from now on; its id.

        One that is declared again before anything of it was taken is the same one.

        Raises:
            UseError: the store has a budget with a filter, which pays for every run; or a total
                that the series would exceed.
        """
        series_id, kept = new_id(), list[str]()

        def compose(history: History) -> list[dict[str, Any]]:
            if history.budget is not None:
                raise UseError(
                    f"{self.path} has a budget with a filter, which pays for every run: a series "
                    "beside it would be a second way to pay",
                    hint="plan without --repeat: the filter counts each run, in any number",
                )
            for known in history.series.values():
                if known.series == series and not known.runs:
                    kept.append(known.id)  # declared before, and nothing of it taken
                    return []
            entry = {"kind": "series", "run_id": series_id, "series": encode(series), "when": now()}
            take(history, entry, history.lines)
            refuse_beyond(self.path, history)
            return [entry]

        self.append(compose)
        return kept[0] if kept else series_id

    def halt(self, run_id: str, *, attempts: int) -> str | None:
        """Settle a run before its end: its steps are over, and nobody may go on with it.

        Args:
            run_id: reserved here, and not settled.
            attempts: steps that any of its folders began.

        Returns:
            Why it costs its whole plan, as a clause; None where a filter counts its attempts only.

        Raises:
            UseError: there is no such run, or it was settled.
        """
        why: list[str | None] = []

        def compose(history: History) -> list[dict[str, Any]]:
            charge = history.charges.get(run_id)
            if charge is None or charge.plan is None:
                raise UseError(
                    f"{self.path} has no reservation of a private run {run_id}, so none to settle"
                )
            if run_id in history.settled:
                raise UseError(f"run {run_id} was settled before, as {self.path} says")
            if not 0 <= attempts <= charge.plan.steps:
                raise UseError(
                    f"run {run_id} reserved {charge.plan.steps} steps and cannot settle {attempts}"
                )
            why.append(why_whole(history, run_id))
            return [{"kind": "halt", "run_id": run_id, "attempts": attempts, "when": now()}]

        self.amend(compose)
        return why[0]
