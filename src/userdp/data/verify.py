"""The check of a store's health: quick, before every charge, or of every byte.

Quick: the sizes of all files, and blocks of them drawn at random; less than half a second for a
store of any size, since people must not pay for a model of damaged text. Whole: every file by its
SHA-256, the index against the segments, and the content hash by reading all tokens by the index,
which catches an index that was altered together with its checksum.

``blocks.arrow`` lies in each folder of a segment or a generation, and holds the first
`DIGEST_BYTES` of the SHA-256 of every `BLOCK` bytes of its other files, in order of names.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np
import pyarrow as pa

from userdp.data import meta as layout
from userdp.data.files import read_table, write_arrow
from userdp.data.index import NO_EXAMPLES, Index, prolong
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import UseError, kind_of
from userdp.files import digest_of_file

BLOCK = 2**18
DIGEST_BYTES = 16
_DIGEST = pa.binary(DIGEST_BYTES)
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


def seal(store: Path, folder: str) -> dict[str, dict[str, Any]]:
    """Digest the files of a new folder of a store, and write their blocks' digests beside them.

    Returns:
        Size and SHA-256 of each, for ``meta.json``, by its path in the store.
    """
    facts: dict[str, dict[str, Any]] = {}
    digests = bytearray()
    for path in sorted((store / folder).iterdir()):
        whole = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                whole.update(block)
                digests += _digest(block)
            facts[f"{folder}/{path.name}"] = {"bytes": file.tell(), "sha256": whole.hexdigest()}
    place = store / folder / layout.BLOCKS
    count = len(digests) // DIGEST_BYTES
    rows = pa.Array.from_buffers(_DIGEST, count, [None, pa.py_buffer(bytes(digests))])
    write_arrow(place, {"digest": rows})
    own = {"bytes": place.stat().st_size, "sha256": digest_of_file(place)}
    return {**facts, f"{folder}/{layout.BLOCKS}": own}


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
    return Verification(files=len(meta.files), problems=tuple(problems))


def require_intact(
    store: UserStore, *, quick: bool = True, progress: Progress | None = None
) -> None:
    """`UseError` if an open store fails the check; called before anything is charged.

    Raises:
        UseError: something is not what was written, or another store lies there now.
    """
    path, meta = store.path, store.meta
    # Where somebody was erased, or people were appended twice, since the store was opened, files
    # that it was opened with are gone by right, perhaps while they were looked at: then those are
    # asked for that lie there now. The bytes of people's text are among them as they were.
    while True:
        wrong = _wrong(path, meta, quick=quick, progress=progress or NoProgress())
        now = read_meta(path)
        if now.states[: len(meta.states)] != meta.states:
            raise UseError(
                f"another store lies at {path} than the one that was opened: its people would be "
                "charged for what others wrote",
                hint="open it again",
            )
        if wrong is None:
            return
        if now.generation == meta.generation:
            raise UseError(
                f"the store at {path} is not what was written: {wrong}. People would be charged "
                "for a model of damaged text, so nothing was charged",
                hint=f"`userdp verify {path}` names all that differs; prepare it again from its "
                "source with --overwrite, which keeps its ledger",
            )
        meta = now


def _wrong(path: Path, meta: StoreMeta, *, quick: bool, progress: Progress) -> str | None:
    try:
        return next(_differences(path, meta, quick=quick, progress=progress), None)
    except UseError as error:
        return error.message
    except OSError as error:
        return kind_of(error)


def _differences(path: Path, meta: StoreMeta, *, quick: bool, progress: Progress) -> Iterator[str]:
    """What of a store's files is not as ``meta`` says."""
    here = {}
    for name, facts in sorted(meta.files.items()):
        file = path / name
        if not file.is_file():
            if not name.endswith(layout.USER_IDS):  # a store works without them
                yield f"{name} is missing"
        elif (size := file.stat().st_size) != facts["bytes"]:
            yield f"{name} has {size} bytes, and had {facts['bytes']}"
        else:
            here[name] = facts
    if quick:
        yield from _other_blocks(path, meta, here)
        return
    progress.stage("checksums", sum(facts["bytes"] for facts in here.values()))
    read = 0
    for name, facts in here.items():
        if digest_of_file(path / name) != facts["sha256"]:
            yield f"{name} has other content than was written (its SHA-256 differs)"
        read += facts["bytes"]
        progress.at(read)


def _other_blocks(path: Path, meta: StoreMeta, here: dict[str, Any]) -> Iterator[str]:
    """Files with a block, of those drawn, that is not what was written."""
    if digest_of_file(path / meta.tokenizer) != meta.tokenizer_sha256:
        yield f"{meta.tokenizer} has other content"
    places: list[tuple[str, int, int]] = []  # a file, a block of it, and that block's digest
    digests: Counter[Path] = Counter()  # of each folder, in the order in which `seal` took them
    for name, facts in sorted(meta.files.items()):
        folder = Path(name).parent
        if name.endswith(layout.BLOCKS) or f"{folder}/{layout.BLOCKS}" not in here:
            continue
        blocks = -(-facts["bytes"] // BLOCK)
        places += [(name, block, digests[folder] + block) for block in range(blocks)]
        digests[folder] += blocks
    for name, block, digest in SystemRandom().sample(places, min(len(places), MOST_BLOCKS)):
        if name not in here:
            continue
        sealed = read_table((path / name).with_name(layout.BLOCKS), {"digest": _DIGEST})["digest"]
        with (path / name).open("rb") as file:
            file.seek(block * BLOCK)
            if _digest(file.read(BLOCK)) != sealed[digest].as_py():
                yield f"{name} has other content"


def _digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()[:DIGEST_BYTES]


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
    index = store.index()
    chains = [bytearray(NO_EXAMPLES * len(Split)) for _ in index.ids]
    progress.stage("content", sum(len(store.split(split).counts) for split in Split))
    done = 0
    for split, code in layout.SPLIT_CODES.items():
        part = store.split(split)
        place = slice(len(NO_EXAMPLES) * code, len(NO_EXAMPLES) * (code + 1))
        users = zip(part.rows.tolist(), part.counts.tolist(), strict=True)
        for user, (row, count) in enumerate(users):
            chain = NO_EXAMPLES
            for first in range(0, count, 4096):
                examples = np.arange(first, min(first + 4096, count))
                rows = part.gather(np.full(len(examples), user), examples)
                targets = None if rows.targets is None else rows.targets.view(np.uint8)
                chain = prolong(chain, rows.tokens, rows.lengths, targets)
            chains[row][place] = chain
            done += 1
            progress.at(done)
    read = Index(index.ids, index.records, [bytes(chain) for chain in chains], index.spans)
    meta = store.meta
    if read.content_hash(seq_len=meta.seq_len, loss_mask=meta.loss_mask) != meta.content_sha256:
        yield "users and tokens are not those that were written (the content hash differs)"
