"""Who changes a store: one process at a time, by a lock on its folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from userdp.errors import UseError


def lock_store(folder: Path) -> int:
    """The descriptor that holds the lock of a store's folder, until it is closed (a kill does too).

    Raises:
        UseError: another process changes the store.
    """
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise UseError(
            f"another process appends to the store at {folder}, or erases somebody from it",
            hint="wait until it is done",
        ) from None
    return lock


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a store's folder for as long as the block runs; see `lock_store`."""
    lock = lock_store(folder)
    try:
        yield
    finally:
        os.close(lock)
