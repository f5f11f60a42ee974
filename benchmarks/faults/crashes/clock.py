"""A wall clock that was set back: what happens later is dated earlier."""

from __future__ import annotations

import time
from datetime import datetime, tzinfo
from typing import Self

from userdp.ledger import store_journal


def set_back(seconds: float) -> None:
    """Let the clock of this process be ``seconds`` behind from now on."""
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() - seconds
    time.time_ns = lambda: now_ns() - int(seconds * 1e9)

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(time.time(), tz)

    # `datetime.now` reads the clock itself, and its class cannot be written to: so the ledger's
    # module gets another class under that name.
    store_journal.datetime = Earlier
