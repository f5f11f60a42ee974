"""The check of a store's health: quick, before every charge, or of every byte.

Quick: the sizes of all files, and blocks of them drawn at random; less than half a second for a
store of any size, since people must not pay for a model of damaged text. Whole: every block of
every file.

``blocks.arrow`` of a generation holds the SHA-256 of every `BLOCK` bytes of its other files and of
all segments; ``meta.json`` holds that of ``blocks.arrow``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

import pyarrow as pa

from userdp.core.errors import UseError, kind_of
from userdp.core.files import digest_of_file
from userdp.core.stages import NoProgress, Progress
from userdp.data import meta as layout
from userdp.data.arrow_files import read_arrow, write_arrow
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.user_store import UserStore

BLOCK = 2**18
_FILES = pa.schema([("file", pa.string()), ("size", pa.int64()), ("sha256", pa.large_binary())])
"""``sha256`` is that of each `BLOCK` bytes of a file, one after another."""
_DIGEST = hashlib.sha256().digest_size
MOST_BLOCKS = 128
"""32 MiB: a smaller store is read whole. Damage to a share f of all blocks is found with
probability 1 - (1 - f)^128: 0.998 for a twentieth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What was checked, and what is wrong with it.

    Args:
        files: how many were looked at.
        problems: one sentence each; empty: the store is as it was written.
    """

    files: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def seal(store: Path, meta: StoreMeta, *, before: int = -1) -> str:
    """Write ``blocks.arrow`` of a new generation, and return its SHA-256.

    Args:
        store: its folder.
        meta: names the segments, and the new index, whose other files are written.
        before: the generation before, which knows segments already; less than 0: there is none.
    """
    index = store / meta.index
    known = {}
    if before >= 0:
        known = {name: one for name, *one in _read(store / layout.index_at(before))}
    own = sorted(f"{meta.index}/{file.name}" for file in index.iterdir())
    rows = [(name, *(known.get(name) or _described(store / name))) for name in (*own, *meta.files)]
    columns = zip(_FILES, zip(*rows, strict=True), strict=True)
    write_arrow(index / layout.BLOCKS, {f.name: pa.array(c, f.type) for f, c in columns})
    return digest_of_file(index / layout.BLOCKS)


def _described(path: Path) -> tuple[int, bytes]:
    """A file's size, and the digests of its blocks."""
    digests = []
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digests.append(hashlib.sha256(block).digest())
    return path.stat().st_size, b"".join(digests)


def _read(index: Path) -> list[tuple[str, int, bytes]]:
    rows = read_arrow(index / layout.BLOCKS, _FILES)
    return list(zip(*(rows[name].to_pylist() for name in _FILES.names), strict=True))


def verify_store(
    path: Path, *, quick: bool = False, progress: Progress | None = None
) -> Verification:
    """Check the store at ``path``.

    Args:
        path: the store.
        quick: sizes and a sample only.
        progress: shows how far the work is, in bytes.

    Raises:
        UseError: no store is at ``path``, or it is of another version.
    """
    meta = read_meta(path)
    problems = _differences(path, meta, quick=quick, progress=progress or NoProgress())
    return Verification(files=5 + len(meta.segments), problems=tuple(problems))


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
        wrong = next(_differences(path, meta, quick=quick, progress=progress or NoProgress()), None)
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
    """What of a store's files is not as it was written: each file once."""
    try:
        if digest_of_file(path / meta.index / layout.BLOCKS) != meta.blocks_sha256:
            yield _other(f"{meta.index}/{layout.BLOCKS}")
        files = _read(path / meta.index)
        if not set(meta.files) <= {name for name, *_ in files}:
            yield f"{layout.META} names segments of which nothing is known"
    except (OSError, UseError) as error:
        yield error.message if isinstance(error, UseError) else f"a file: {kind_of(error)}"
        return
    whole: list[tuple[str, int, bytes]] = []
    for name, size, digests in files:
        try:
            now = (path / name).stat().st_size
        except OSError as error:
            yield f"{name}: {kind_of(error)}"
            continue
        if now != size:
            yield f"{name} has {now} bytes, and had {size}"
            continue
        ends = range(_DIGEST, len(digests) + 1, _DIGEST)
        whole += [(name, n * BLOCK, digests[e - _DIGEST : e]) for n, e in enumerate(ends)]
    if quick:
        whole = SystemRandom().sample(whole, min(len(whole), MOST_BLOCKS))
    progress.stage("checksums", len(whole) * BLOCK)
    wrong = set()
    for number, (name, start, digest) in enumerate(whole, 1):
        try:
            if name not in wrong and _digest(path / name, start) != digest:
                wrong.add(name)
                yield _other(name)
        except OSError as error:
            wrong.add(name)
            yield f"{name}: {kind_of(error)}"
        progress.at(number * BLOCK)


def _other(name: str) -> str:
    return f"{name} has other content than was written (its SHA-256 differs)"


def _digest(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(BLOCK)).digest()
