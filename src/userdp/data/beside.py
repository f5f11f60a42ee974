"""Where a store is made before it is there: a hidden folder beside its place, and its leftovers.

A new store is written into ``.NAME.partial-…``; one that it replaces is moved to ``.NAME.old-…``
meanwhile. Both hold people's text, so whoever makes the next store, or erases somebody from this
one, removes what a killed process left of them.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path

from userdp.data import format as layout
from userdp.data.checkpoints import forget_state, read_state
from userdp.data.meta import is_store
from userdp.errors import UseError
from userdp.files import in_the_way, operator_folder, sync


def require_free(out: Path, *, overwrite: bool) -> None:
    """`UseError` if a store may not be put at ``out``."""
    if not out.exists() and not out.is_symlink():
        return
    if not is_store(out):
        raise UseError(
            f"{out} exists and is not a user store, so it is left alone",
            hint="choose another place for the store",
        )
    if not overwrite:
        raise in_the_way(out, "a store")


def keep_ledger(old: Path, new: Path) -> None:
    """Let a new store share the old one's privacy ledger, the same file on disk.

    The people whose data it is stay charged; a run that is writing to it loses nothing.
    """
    kept = [old / name for name in (layout.LEDGER, layout.LEDGER_PLACE, layout.PLACES)]
    for path in (*kept, *(old / layout.LEDGER_RUNS).glob("*")):
        place = new / path.relative_to(old)
        if path.exists() and not place.exists():
            if place.parent != new:
                operator_folder(place.parent)
            place.hardlink_to(path)
    sync(new)


def hidden(place: Path) -> tuple[Path, int]:
    """A new hidden folder beside ``place``, locked."""
    folder = place.with_name(f".{place.name}.partial-{secrets.token_hex(4)}")
    folder.mkdir(mode=0o700)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def recover(out: Path) -> None:
    """Bring back an old store that a killed process had moved aside and not yet replaced."""
    for old in out.parent.glob(f".{out.name}.old-*"):
        if not out.exists():
            old.rename(out)
        else:
            keep_ledger(old, out)
            shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(store: Path) -> None:
    """Remove what killed `prepare`s left beside a store: their working files hold people's text."""
    place = store.absolute()
    recover(place)
    abandoned(place, None)


def abandoned(place: Path, key: str | None) -> tuple[Path, int] | None:
    """Remove what killed processes left, but for one folder of a run of ``key``: it, locked."""
    taken = None
    for folder in place.parent.glob(f".{place.name}.partial-*"):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use by a living process
            os.close(lock)
            continue
        if taken is None and read_state(folder, key) is not None:
            taken = folder, lock
        else:
            forget_state(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
    return taken
