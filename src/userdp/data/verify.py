"""Check a store: its files by their checksums, its index and its logical hash by reading it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from userdp.data import format as layout
from userdp.data.blocks import refusal
from userdp.data.content import NO_EXAMPLES, prolong
from userdp.data.erasure import settle_erasure
from userdp.data.files import checksum
from userdp.data.index import Index
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """What was checked, and what is wrong with it.

    Args:
        files: files read whole.
        bytes: of them.
        examples: examples whose tokens were hashed anew; 0 where ``deep`` was not asked for or
            the store has no user ids.
        problems: one sentence each; empty: the store is as it was written.
    """

    files: int
    bytes: int
    examples: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"ok": self.ok, **asdict(self), "problems": list(self.problems)}


def verify_store(
    path: Path, *, deep: bool = True, progress: Progress | None = None
) -> Verification:
    """Check every file of the store at ``path`` against its checksum, and the index against it.

    Args:
        path: the store.
        deep: also read all tokens by the index, and compare the logical hash; this catches an
            index that was altered together with its checksum.
        progress: is told how far the work is, in bytes and then in users.

    Raises:
        UseError: no store is at ``path``, or it is of another version.
    """
    settle_erasure(path)
    meta = read_meta(path)
    shown = progress or NoProgress()
    problems: list[str] = []
    shown.stage("checksums", sum(facts["bytes"] for facts in meta.files.values()))
    read = 0
    without_ids = not (_index(path, meta) / layout.USER_IDS).exists()
    for name, facts in sorted(meta.files.items()):
        if without_ids and name.endswith(layout.USER_IDS):
            continue
        problems += _check_file(path, name, facts)
        read += facts["bytes"]
        shown.at(read)
    examples = 0
    if not problems:
        try:
            store = UserStore.open(path, fixed_graph=True)
            problems += _check_index(store)
            if deep and not problems and not without_ids:
                examples = store.meta.totals["examples"]
                problems += _check_content(store, shown)
        except (UseError, FailureError) as error:
            problems.append(error.message)
    return Verification(
        files=len(meta.files), bytes=read, examples=examples, problems=tuple(problems)
    )


def require_every_byte(path: Path, *, progress: Progress | None = None) -> None:
    """`UseError` unless every file of the store at ``path`` is, byte for byte, what was written."""
    problems = verify_store(path, deep=False, progress=progress).problems
    if problems:
        raise refusal(path, "; ".join(problems))


def _index(path: Path, meta: StoreMeta) -> Path:
    return path / layout.INDEX / layout.segment_name(meta.generation)


def _check_file(path: Path, name: str, facts: dict[str, Any]) -> Iterator[str]:
    file = path / name
    if not file.is_file():
        yield f"{name} is missing"
        return
    size = file.stat().st_size
    if size != facts["bytes"]:
        yield f"{name} has {size} bytes, not {facts['bytes']}"
    elif checksum(file) != facts:
        yield f"{name} has other content than was written (its SHA-256 differs)"


def _check_index(store: UserStore) -> Iterator[str]:
    """Spans must tile the segments: each example in exactly one, each in its segment."""
    spans = store.spans()
    order = np.lexsort((spans["start"], spans["segment"]))
    segment, start, length = (spans[key][order] for key in ("segment", "start", "length"))
    sizes = store.segment_examples()
    expected = 0
    for number, size in enumerate(sizes):
        here = segment == number
        begins, ends = start[here], (start + length)[here]
        # Where everybody in a segment was erased, nothing is left of it.
        if not np.array_equal(np.append(0, ends), np.append(begins, size)):
            yield f"the spans of segment {number} do not hold each of its examples once"
        expected += size
    if expected != length.sum():
        yield "the span index names examples that no segment has"
    if spans["user"].size and not 0 <= spans["user"].min() <= spans["user"].max() < store.users:
        yield "the span index names users that are not in the store"
    totals = store.meta.totals
    if (totals["users"], totals["examples"]) != (store.users, expected):
        yield "the totals in meta.json are not those of the index"


def _check_content(store: UserStore, progress: Progress) -> Iterator[str]:
    index = store.index()
    chains = [bytearray(NO_EXAMPLES * len(Split)) for _ in index.ids]
    progress.stage("content", sum(len(store.split(split).counts) for split in Split))
    done = 0
    for split, code in layout.SPLIT_CODES.items():
        part = store.split(split)
        place = slice(len(NO_EXAMPLES) * code, len(NO_EXAMPLES) * (code + 1))
        for user, (row, count) in enumerate(
            zip(part.rows.tolist(), part.counts.tolist(), strict=True)
        ):
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
