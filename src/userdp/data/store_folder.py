"""The folder of a store: who may change it, what a killed change left, and where else text went.

Nothing in the folder counts until ``meta.json`` names it. ``places.jsonl`` (0600) names the folders
of the store's runs and its files of scores: a line for each, written when it is made, so that an
erasure finds what was made of a person's text. What was moved since is not found: its operator
names it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from userdp.core.errors import UseError, UserdpError
from userdp.core.files import append_line, exclusive, read_lines, sweep, sync
from userdp.core.interrupts import held
from userdp.data import store_meta as layout
from userdp.data.store_meta import StateKind, StoreMeta, read_meta


@contextmanager
def changing(store: Path) -> Iterator[None]:
    """Hold a store's lock; what the store does not name in the end is removed.

    Raises:
        UseError: another process changes it.
    """
    with _locked(store):
        try:
            yield
        finally:
            with held() as signals, suppress(UseError):  # of another version, and not yet replaced
                clear(store, read_meta(store))
                signals.heard = False


def clear(folder: Path, meta: StoreMeta) -> None:
    """Remove from a store's folder what ``meta`` does not name; call it under the lock."""
    sweep(folder)
    for entry in _unnamed(folder, meta):
        shutil.rmtree(entry, ignore_errors=True)


def finish_erasure(folder: Path, meta: StoreMeta) -> None:
    """Delete what an erasure that was killed left in a store's folder.

    Nothing where another process holds the store, or the disk refuses: the person is out of the
    index in any case.
    """
    if meta.state.kind is StateKind.ERASED and _unnamed(folder, meta):
        with suppress(UserdpError, OSError), _locked(folder):
            clear(folder, read_meta(folder))


def _unnamed(folder: Path, meta: StoreMeta) -> list[Path]:
    there = folder.glob(f"{layout.GENERATIONS}/*")
    return [entry for entry in there if entry != folder / meta.folder]


def _locked(folder: Path) -> AbstractContextManager[int]:
    """Holds the lock of a store's folder; `UseError` if another process has it."""
    refusal = UseError(
        f"another process appends to the store at {folder}, or erases somebody from it",
        hint="wait until it is done",
    )
    return exclusive(folder, refusal=refusal)


def remember(store: Path, path: Path) -> None:
    """Note that something made of the store's text lies at ``path``; on the disk once it is made.

    Args:
        store: the store's folder.
        path: where a run or a file of scores will lie.
    """
    known = path.resolve()
    if known not in remembered(store):
        append_line(store / layout.PLACES, {"path": str(known)})
        sync(store / layout.PLACES)


def remembered(store: Path) -> list[Path]:
    """The places that were noted, whatever lies there now.

    Raises:
        UseError: a line is damaged.
    """
    file = store / layout.PLACES
    try:  # of a line that a crash cut short nothing was made
        return [Path(str(one["path"])) for one in read_lines(file)]
    except (UseError, KeyError) as error:
        raise UseError(
            f"{file} is damaged: an erasure would not find all that was made of a person's text",
            hint="put back the file that was there",
        ) from error
