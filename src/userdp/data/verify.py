"""The check of a store's health: quick, before every charge, or of every byte.

Quick: the sizes of all files, and blocks of them drawn at random; less than half a second for a
store of any size, since people must not pay for a model of damaged text. Whole: every block of
every file, the index against the segments, and the content hash by reading all tokens by the index,
which catches an index that was altered together with its digests.

``blocks.arrow`` of a generation holds the SHA-256 of every `BLOCK` bytes of its index and of all
segments; ``meta.json`` holds that of ``blocks.arrow``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom

import numpy as np
import pyarrow as pa

from userdp.core.errors import UseError, kind_of
from userdp.core.files import digest_of_file
from userdp.data import meta as layout
from userdp.data.files import read_arrow, write_arrow
from userdp.data.generation import NO_EXAMPLES, prolong
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.progress import NoProgress, Progress
from userdp.data.store import UserStore

BLOCK = 2**18
_BLOCKS = pa.schema(
    [
        ("file", pa.string()),
        ("start", pa.int64()),
        ("size", pa.int64()),
        ("sha256", pa.binary(32)),
    ]
)
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


def seal(folder: Path, meta: StoreMeta, index: str) -> str:
    """Write ``blocks.arrow`` of a new generation, and return its SHA-256.

    Args:
        folder: of the store.
        meta: names the segments, and the index of the generation before.
        index: the folder of the new index, whose other files are written.
    """
    known = _blocks_of(folder, meta) if meta.index else []
    segments = set(meta.segments)
    blocks = [block for block in known if block[0] in segments]
    segments -= {name for name, *_ in blocks}
    new = sorted({*segments, *(f"{index}/{file.name}" for file in (folder / index).iterdir())})
    for name in new:
        with (folder / name).open("rb") as file:
            at = 0
            while block := file.read(BLOCK):
                blocks.append((name, at, len(block), hashlib.sha256(block).digest()))
                at += len(block)
    columns = list(zip(*blocks, strict=True))
    place = folder / index / layout.BLOCKS
    arrays = [pa.array(values, one.type) for values, one in zip(columns, _BLOCKS, strict=True)]
    write_arrow(place, dict(zip(_BLOCKS.names, arrays, strict=True)))
    return digest_of_file(place)


def _blocks_of(folder: Path, meta: StoreMeta) -> list[tuple[str, int, int, bytes]]:
    rows = read_arrow(folder / meta.index / layout.BLOCKS, _BLOCKS)
    return list(zip(*(rows[name].to_pylist() for name in _BLOCKS.names), strict=True))


def verify_store(
    path: Path, *, quick: bool = False, progress: Progress | None = None
) -> Verification:
    """Check the store at ``path``.

    Args:
        path: the store.
        quick: sizes and a sample only.
        progress: is told how far the work is, in bytes and then in users.

    Raises:
        UseError: no store is at ``path``, or it is of another version.
    """
    meta, shown = read_meta(path), progress or NoProgress()
    problems = list(_differences(path, meta, quick=quick, progress=shown))
    if not quick and not problems:
        try:
            store = UserStore.open(path, fixed_graph=True)
            problems += _of_index(store)
            if not problems and store.has_ids:
                problems += _of_content(store, shown)
        except UseError as error:
            problems.append(error.message)
    return Verification(files=5 + len(meta.segments), problems=tuple(problems))


def require_intact(
    store: UserStore, *, quick: bool = True, progress: Progress | None = None
) -> None:
    """`UseError` if an open store fails the check; called before anything is charged.

    Raises:
        UseError: something is not what was written, or another store lies there now.
    """
    path, meta = store.path, store.meta
    # Where somebody was erased, or people were appended, since the store was opened, files that it
    # was opened with are gone by right, perhaps while they were looked at: then those are asked for
    # that lie there now. The bytes of people's text are among them as they were.
    while True:
        wrong = next(_differences(path, meta, quick=quick, progress=progress or NoProgress()), None)
        now = read_meta(path)
        if now.states[: len(meta.states)] != meta.states:
            raise UseError(
                f"another store lies at {path} than the one that was opened: its people would be "
                "charged for what others wrote",
                hint="open it again",
            )
        if wrong is None:
            return
        if now.index == meta.index:
            raise UseError(
                f"the store at {path} is not what was written: {wrong}. People would be charged "
                "for a model of damaged text, so nothing was charged",
                hint=f"`userdp verify {path}` names all that differs; prepare it again from its "
                "source with --overwrite, which keeps its ledger",
            )
        meta = now


def _differences(path: Path, meta: StoreMeta, *, quick: bool, progress: Progress) -> Iterator[str]:
    """What of a store's files is not as it was written: each file once."""
    sealed = {
        meta.tokenizer: meta.tokenizer_sha256,
        f"{meta.index}/{layout.BLOCKS}": meta.blocks_sha256,
    }
    try:
        for name, expected in sealed.items():
            if digest_of_file(path / name) != expected:
                yield f"{name} has other content than was written (its SHA-256 differs)"
        blocks = _blocks_of(path, meta)
    except (OSError, UseError) as error:
        yield error.message if isinstance(error, UseError) else f"a file: {kind_of(error)}"
        return
    wrong = set()
    for name, size in {name: start + size for name, start, size, _ in blocks}.items():
        if not (path / name).is_file():
            wrong.add(name)
            if not name.endswith(layout.USER_IDS):  # a store works without them
                yield f"{name} is missing"
        elif (now := (path / name).stat().st_size) != size:
            wrong.add(name)
            yield f"{name} has {now} bytes, and had {size}"
    if quick:
        blocks = SystemRandom().sample(blocks, min(len(blocks), MOST_BLOCKS))
    progress.stage("checksums", sum(size for _, _, size, _ in blocks))
    read = 0
    for name, start, size, digest in blocks:
        try:
            if name not in wrong and _digest(path / name, start, size) != digest:
                wrong.add(name)
                yield f"{name} has other content than was written (its SHA-256 differs)"
        except OSError as error:
            wrong.add(name)
            yield f"{name}: {kind_of(error)}"
        read += size
        progress.at(read)


def _digest(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.sha256(file.read(size)).digest()


def _of_index(store: UserStore) -> Iterator[str]:
    """Spans must tile the segments: each example in exactly one."""
    spans = store.spans()
    order = np.lexsort((spans["start"], spans["segment"]))
    segment, start, length = (spans[key][order] for key in ("segment", "start", "length"))
    sizes = store.segment_examples()
    for number, size in enumerate(sizes):
        here = segment == number
        begins, ends = start[here], (start + length)[here]
        # Where everybody in a segment was erased, nothing is left of it.
        if not np.array_equal(np.append(0, ends), np.append(begins, size)):
            yield f"the spans of segment {number} do not hold each of its examples once"
    totals = store.meta.totals
    if (totals["users"], totals["examples"]) != (store.users, sum(sizes)):
        yield "the totals in meta.json are not those of the index"


def _of_content(store: UserStore, progress: Progress) -> Iterator[str]:
    """The content hash must be that of the tokens, read by the index."""
    index, parts = store.index(), [store.split(split) for split in layout.SPLIT_CODES]
    chains = [[NO_EXAMPLES] * len(parts) for _ in index.ids]
    progress.stage("content", sum(len(part.counts) for part in parts))
    done = 0
    for code, part in enumerate(parts):
        for user, (row, count) in enumerate(zip(part.rows, part.counts, strict=True)):
            for first in range(0, count, 4096):
                examples = np.arange(first, min(first + 4096, count))
                rows = part.gather(np.full(len(examples), user), examples)
                targets = None if rows.targets is None else rows.targets.view(np.uint8)
                chains[row][code] = prolong(chains[row][code], rows.tokens, rows.lengths, targets)
            done += 1
            progress.at(done)
    read = replace(index, chains=[b"".join(own) for own in chains])
    if read.content_hash(store.meta) != store.meta.content_sha256:
        yield "users and tokens are not those that were written (the content hash differs)"
