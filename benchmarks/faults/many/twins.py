"""Deliberate faults of the library, each of which the judge must notice."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from userdp.ledger import journal, store_journal
from userdp.ledger.store_journal import StoreJournal

_MEANWHILE = 6.0
"""Seconds between the judgement and the charge: more than between two moments at which a purse is
asked, so that somebody else asks it in between on a busy machine too."""


def no_lock() -> None:
    """Whoever appends to a ledger does not wait for others who do."""
    free = SimpleNamespace(**{**vars(fcntl), "flock": lambda descriptor, how: None})
    journal.fcntl = free


def judged_before() -> None:
    """Whether a total admits a charge is decided before the ledger's lock is taken."""
    refuse, charge = store_journal.refuse_beyond, StoreJournal.charge

    def early(ledger: StoreJournal, entry: dict[str, Any], *, taken: str) -> None:
        history = ledger.history()
        store_journal.take(history, entry, history.lines)
        refuse(ledger.path, history)
        time.sleep(_MEANWHILE)
        charge(ledger, entry, taken=taken)

    store_journal.refuse_beyond = lambda path, history: None
    StoreJournal.charge = early


TWINS: dict[str, Callable[[], None]] = {
    "no-lock": no_lock,
    "judged-before": judged_before,
}
