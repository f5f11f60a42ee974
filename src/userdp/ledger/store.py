"""The store ledger: what the people in a user store have been charged, over all runs.

A run *reserves* its whole plan when it starts and *settles* when it ends. A run that never
settles stays charged in full. A private selection is one line for all of its trials, which
reserve nothing of their own: their number is secret. A DP statistic (`userdp.queries`) is a line
of its own, written before its answer is drawn; the answer follows on another. The file is
``ledger.jsonl`` in the store's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp.accounting.mechanisms.pure import PureQuery
from userdp.codec import decode, encode
from userdp.errors import UseError
from userdp.ledger.folder import LEDGER
from userdp.ledger.journal import append_entries, read_entries
from userdp.plan import Plan, PrivateSelection
from userdp.plan.tuning import tuning_from

SCHEMA = "userdp.store-ledger/3"


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """What one run or query costs the people of a store.

    Args:
        run_id: of the run, the query or the selection.
        plan: None for a run without privacy, for a query and for a selection.
        steps: charged; 0 for a query and for a selection, which is charged as a whole.
        settled: what it costs is final.
        query_epsilon: of a query with pure (ε, 0)-DP per user, add-or-remove; None for a run.
        query_name: what was asked.
        answer: what was released; None if a crash came between the charge and its answer.
        selection: of a private selection, all of whose trials this pays for.
    """

    run_id: str
    plan: Plan | None = None
    steps: int = 0
    settled: bool = False
    query_epsilon: float | None = None
    query_name: str | None = None
    answer: int | None = None
    selection: PrivateSelection | None = None


class StoreLedger:
    """The privacy ledger of one user store."""

    def __init__(self, store: Path) -> None:
        self.path = store / LEDGER

    def reserve(self, run_id: str, plan: Plan | None) -> None:
        """Charge a run's whole plan, on the disk before this returns.

        Raises:
            UseError: the run has a reservation already.
        """
        entry = {"kind": "reserve", "run_id": run_id, "plan": encode(plan)}
        self._charge(entry, taken=f"run {run_id} is already reserved in {self.path}")

    def reserve_selection(self, selection_id: str, selection: PrivateSelection) -> None:
        """Charge a private selection, on the disk before this returns and so before any trial.

        Raises:
            UseError: the id is taken.
        """
        entry = {"kind": "selection", "run_id": selection_id, "selection": encode(selection)}
        self._charge(entry, taken=f"selection {selection_id} is already reserved in {self.path}")

    def require_selection(self, selection_id: str, plan: Plan) -> None:
        """Whether a selection pays for trials of ``plan``.

        Raises:
            UseError: it was never reserved here, or ``plan`` is not one of its plans.
        """
        selections = {charge.run_id: charge.selection for charge in self.charges()}
        selection = selections.get(selection_id)
        if selection is None or plan not in selection.plans:
            raise UseError(
                f"no private selection {selection_id} in {self.path} pays for this plan, so a "
                "trial of it would be charged nowhere",
                hint="go on with the sweep: userdp sweep STORE --out DIR --resume",
            )

    def query(self, query_id: str, *, name: str, pure_epsilon: float) -> None:
        """Charge a statistic, on the disk before this returns and so before it is drawn.

        Args:
            query_id: new in this ledger.
            name: what is asked; public.
            pure_epsilon: the statistic is (ε, 0)-DP per user, add-or-remove; > 0, at most 700.

        Raises:
            UseError: the id is taken, or ε out of range.
        """
        PureQuery(pure_epsilon=pure_epsilon)
        entry = {"kind": "query", "run_id": query_id, "name": name, "pure_epsilon": pure_epsilon}
        self._charge(entry, taken=f"query {query_id} is already charged in {self.path}")

    def answer(self, query_id: str, *, value: int) -> None:
        """Keep the answer of a charged query: it is a DP release, so it may stand here.

        Raises:
            UseError: the query was never charged, or has its answer.
        """

        def compose(charged: dict[str, Charge]) -> list[dict[str, Any]]:
            if query_id not in charged or charged[query_id].query_epsilon is None:
                raise UseError(f"{query_id} is no query charged in {self.path}")
            if charged[query_id].answer is not None:
                raise UseError(f"query {query_id} has its answer in {self.path} already")
            return [{"kind": "answer", "run_id": query_id, "value": int(value)}]

        self._amend(compose)

    def settle(self, run_id: str, *, steps: int) -> None:
        """Note what a reserved run was charged in the end; at most what it reserved."""

        def compose(reserved: dict[str, Charge]) -> list[dict[str, Any]]:
            if run_id not in reserved:
                raise UseError(f"run {run_id} has no reservation in {self.path}, so none to settle")
            if reserved[run_id].settled:
                return []
            plan = reserved[run_id].plan
            if plan is not None and not 0 <= steps <= plan.steps:
                raise UseError(
                    f"run {run_id} reserved {plan.steps} steps and cannot settle {steps}"
                )
            return [{"kind": "settle", "run_id": run_id, "steps": steps}]

        self._amend(compose)

    def _charge(self, entry: dict[str, Any], *, taken: str) -> None:
        """Append the first line of a run, query or selection; `UseError` if its id is taken."""

        def compose(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            if any(charge.run_id == entry["run_id"] for charge in charges_of(self.path, entries)):
                raise UseError(taken)
            return [entry] if entries else [{"kind": "store", "schema": SCHEMA}, entry]

        append_entries(self.path, compose)

    def _amend(self, compose: Callable[[dict[str, Charge]], list[dict[str, Any]]]) -> None:
        """Append what ``compose`` makes of the charges so far, by id; never begins a ledger."""
        if not self.charges():
            compose({})
            return
        append_entries(
            self.path,
            lambda entries: compose(
                {charge.run_id: charge for charge in charges_of(self.path, entries)}
            ),
        )

    def charges(self) -> list[Charge]:
        """One charge per run, oldest first; none without a file, or with one just begun."""
        return charges_of(self.path, read_entries(self.path)) if self.path.exists() else []


def charges_of(path: Path, entries: list[dict[str, Any]]) -> list[Charge]:
    """The charges in a store ledger's entries; `UseError` if they are no store ledger's.

    No entries are no charges: a line is on the disk before what it charges for begins.
    """
    if not entries:
        return []
    if entries[0].get("kind") != "store" or entries[0].get("schema") != SCHEMA:
        raise UseError(
            f"{path} is not a store ledger of schema {SCHEMA}, it says "
            f"{entries[0].get('schema')!r}: what it charged is not known to this version"
        )
    charges: dict[str, Charge] = {}
    for entry in entries[1:]:
        run_id = entry["run_id"]
        if entry["kind"] == "reserve":
            what = f"the plan of {run_id}"
            plan = decode(Plan, entry["plan"], what=what) if entry["plan"] else None
            charges[run_id] = Charge(run_id=run_id, plan=plan, steps=plan.steps if plan else 0)
        elif entry["kind"] == "settle":
            charges[run_id] = replace(charges[run_id], steps=entry["steps"], settled=True)
        elif entry["kind"] == "selection":
            selection = tuning_from(entry["selection"])
            if not isinstance(selection, PrivateSelection):
                raise UseError(f"{path} holds a selection that is not private")
            charges[run_id] = Charge(run_id=run_id, settled=True, selection=selection)
        elif entry["kind"] == "query":
            query = PureQuery(pure_epsilon=entry["pure_epsilon"])
            charges[run_id] = Charge(
                run_id=run_id,
                settled=True,
                query_epsilon=query.pure_epsilon,
                query_name=entry["name"],
            )
        elif entry["kind"] == "answer":
            charges[run_id] = replace(charges[run_id], answer=entry["value"])
        else:
            raise UseError(f"{path} holds a line of unknown kind {entry['kind']!r}")
    return list(charges.values())
