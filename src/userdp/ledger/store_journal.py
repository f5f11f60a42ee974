"""The file under a store's ledger: read whole, written under its lock, and never lost unnoticed.

What may be written in it say `userdp.ledger.store` (charges and looks), `userdp.ledger.budget`
(totals and filters), `userdp.ledger.series` and `userdp.ledger.settling`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from userdp import files
from userdp.errors import FailureError, UseError
from userdp.ledger.budget import refuse_beyond
from userdp.ledger.charges import Charge
from userdp.ledger.history import SCHEMA, History, history_of, take
from userdp.ledger.journal import append_entries, read_entries
from userdp.ledger.opening import attempts_in
from userdp.ledger.place import Place
from userdp.ledger.series import room_for


class StoreJournal:
    """The lines of a store's ledger, wherever it lies (`userdp.ledger.place`).

    Args:
        store: the store's folder.

    Raises:
        UseError: the store had a ledger, and it is gone.
    """

    def __init__(self, store: Path) -> None:
        self.place = Place(store)
        self.path = self.place.ledger

    def history(self) -> History:
        """The ledger, read; empty if nothing was ever written in it."""
        # Counted before the ledger is read: a run that another process begins in between is then in
        # the ledger, and not among the counted. The other way round it would seem to be lost.
        counted = attempts_in(self.place.runs)
        entries = read_entries(self.path) if self.path.exists() else []
        if not entries:
            self.place.require_new()
        history = history_of(self.path, entries)
        if entries:
            history.copied = history.copied or self.place.elsewhere(history.id)
        self._require_counted(history, counted)
        return history

    def _require_counted(self, history: History, counted: Mapping[str, int]) -> None:
        """`UseError` if the ledger does not know a charge that steps were taken of."""
        known = {*history.charges, *history.taken.values()}
        lost = [name for name, taken in counted.items() if taken]
        if not known.issuperset(lost):
            raise UseError(
                f"steps were taken beside {self.path} that it knows nothing of: it was put back to "
                "an earlier state, and does not hold what these people were charged since",
                hint="prepare the store again; what was trained before is then not in its claims",
            )

    def charges(self) -> list[Charge]:
        """One charge per run, oldest first; none without a file, or with one just begun."""
        return list(self.history().charges.values())

    def charge(self, entry: dict[str, Any], *, taken: str) -> None:
        """Append the first line of a run, query or selection; `UseError` if its id is taken."""

        def compose(history: History) -> list[dict[str, Any]]:
            if entry["run_id"] in history.charges:
                raise UseError(taken)
            self._refuse_outside_series(history, entry)
            take(history, entry, history.lines)
            refuse_beyond(self.path, history)
            return [entry]

        self.append(compose)

    def append(self, compose: Callable[[History], list[dict[str, Any]]]) -> None:
        """Append what ``compose`` makes of the ledger so far; begins it where there is none."""

        wrote = moved = False

        def lines(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
            nonlocal wrote, moved
            history = history_of(self.path, entries)
            # Under the ledger's lock, so that no charge comes between the two.
            self._require_counted(history, attempts_in(self.place.runs))
            added = compose(history)
            if not added:
                return []
            wrote = True
            moved = self.place.take(str(entries[0].get("id")) if entries else None)
            if not entries:
                return [self.first_line(), *added]
            return ([{"kind": "place"}] if moved else []) + added

        def noted(whole: bool) -> None:
            # Nothing is noted where nothing was written, nor where the line that tells that the
            # file is another one was refused: that would be forgotten.
            if wrote and (whole or not moved):
                self.place.settle()

        append_entries(self.path, lines, mode=files.OPERATOR_FILE, noted=noted)

    def first_line(self) -> dict[str, Any]:
        return {"kind": "store", "schema": SCHEMA, "id": self.place.id}

    def amend(self, compose: Callable[[History], list[dict[str, Any]]]) -> None:
        """As `append`, but never begins a ledger."""
        if not self.history().lines:
            compose(History())
            raise FailureError(f"nothing was ever charged in {self.path}")
        self.append(compose)

    def _refuse_outside_series(self, history: History, entry: dict[str, Any]) -> None:
        """`UseError` for a further charge of a run of a series, where that has no run left."""
        first = history.charges.get(entry.get("again") or "")
        if first is None or first.series is None or room_for(history, first.plan) is not None:
            return
        raise UseError(
            f"run {first.run_id} is one of a declared series, all of whose runs are taken: a "
            "further charge of its plan would be a run more than was declared",
            hint="train again in another --out",
        )


def now() -> str:
    """The date and time in UTC, for the operator's eyes: a store's ledger is never released."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_id() -> str:
    """A random id of a run, a slot, an opening or a budget: 64 bits."""
    return secrets.token_hex(8)
