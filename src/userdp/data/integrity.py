"""The check of a store's files against what was written: quick, before every charge, or whole.

``meta.json`` holds the size and the SHA-256 of each file of the generation that counts (`seal`).
The quick check compares all sizes, which finds a copy that was cut short, and reads files, the
smallest first, up to `QUICK_BYTES`: a small store whole. The whole check reads every file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from userdp.core.errors import UseError, kind_of
from userdp.core.files import digest_of_file
from userdp.core.stages import Progress
from userdp.data.meta import Seal, StoreMeta, read_meta
from userdp.data.user_store import UserStore

QUICK_BYTES = 2**25
"""Takes some hundredths of a second to read."""


def seal(folder: Path) -> dict[str, Seal]:
    """The sizes and digests of all files of a new generation."""
    return {
        file.name: Seal(size=file.stat().st_size, sha256=digest_of_file(file))
        for file in sorted(folder.iterdir())
    }


def verify_store(
    path: Path, *, quick: bool = False, progress: Progress | None = None
) -> tuple[str, ...]:
    """What is not as it was written in the store at ``path``, one sentence each.

    Args:
        path: the store.
        quick: see this file's head.
        progress: shows how far the work is, in bytes.

    Raises:
        UseError: no store is at ``path``, or it is of another version.
    """
    meta = read_meta(path)
    return tuple(_differences(path, meta, quick=quick, progress=progress or Progress()))


def require_intact(
    store: UserStore, *, quick: bool = True, progress: Progress | None = None
) -> None:
    """`UseError` if an open store fails the check; called before anything is charged.

    Raises:
        UseError: something is not what was written, or another store lies there now.
    """
    path = store.path
    while True:
        # People may have been appended, or erased, since the store was opened: the text of all
        # others is among what lies there now.
        meta = read_meta(path)
        if meta.states[: len(store.meta.states)] != store.meta.states:
            raise UseError(
                f"another store lies at {path} than the one that was opened: its people would be "
                "charged for what others wrote",
                hint="open it again",
            )
        wrong = next(_differences(path, meta, quick=quick, progress=progress or Progress()), None)
        if wrong is None:
            return
        if read_meta(path).generation == meta.generation:  # else it changed meanwhile
            raise UseError(
                f"the store at {path} is not what was written: {wrong}. People would be charged "
                "for a model of damaged text, so nothing was charged",
                hint=f"`userdp verify {path}` names all that differs; prepare it again from its "
                "source with --overwrite, which keeps its ledger",
            )


def _differences(path: Path, meta: StoreMeta, *, quick: bool, progress: Progress) -> Iterator[str]:
    """Which of a store's files are not as they were written, and how they differ."""
    done, total = 0, sum(written.size for written in meta.files.values())
    progress.stage("checksums", min(total, QUICK_BYTES) if quick else total)
    for name, written in sorted(meta.files.items(), key=lambda one: one[1].size):
        file, done = path / meta.folder / name, done + written.size
        try:
            size = file.stat().st_size
            if size != written.size:
                yield f"{name} has {size} bytes, and had {written.size}"
            elif not (quick and done > QUICK_BYTES):
                if digest_of_file(file) != written.sha256:
                    yield f"{name} has other content than was written (its SHA-256 differs)"
                progress.at(done)
        except OSError as error:
            yield f"{name}: {kind_of(error)}"
