"""Small corpora, and plain-Python readings of a store to compare with."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from userdp.data.contents import NO_EXAMPLES, Index, prolong
from userdp.data.integrity import verify_store
from userdp.data.meta import SPLIT_CODES
from userdp.data.pipeline import prepare_store
from userdp.data.records import Record
from userdp.data.selection import select_once
from userdp.data.sources.source import Source
from userdp.data.splits import Split
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import StoreSplit, UserStore

WORDS = [
    "alpha", "beta", "gamma", "delta", "store", "user", "noise", "clip", "it", "é", "日本", "🙂",
]  # fmt: skip
REAL_DATA = Path(__file__).parents[3] / "shared" / "data"


def ListSource(held: Iterable[Record], public: bool = False, **flags: bool) -> Source:
    """Records from a list, as a source; also how little a source needs."""
    return Source(
        kind="list", places=(tuple(held),), read=lambda held, at: iter(held), public=public, **flags
    )


def corpus(users: int, seed: int = 0, *, longest: int = 40) -> dict[bytes, list[str]]:
    """Users with 1 to 30 records (heavy-tailed) of 1 to ``longest`` words."""
    draw = random.Random(seed)
    return {
        f"user{number:03d}".encode(): [
            " ".join(draw.choices(WORDS, k=draw.randint(1, longest)))
            for _ in range(min(30, int(draw.paretovariate(0.7))))
        ]
        for number in range(users)
    }


def interleaved(texts: dict[bytes, list[str]], seed: int = 0) -> tuple[Record, ...]:
    """The users' records mixed, each user's in order, as a file would have them."""
    draw = random.Random(seed)
    queue = [user for user, held in texts.items() for _ in held]
    draw.shuffle(queue)
    rest = {user: iter(held) for user, held in texts.items()}
    return tuple(Record(user, next(rest[user]).encode()) for user in queue)


def prepared(
    texts: dict[bytes, list[str]] | Sequence[Record],
    out: Path,
    *,
    public: bool = False,
    **options: Any,
) -> UserStore:
    """The store of a corpus."""
    records = interleaved(texts) if isinstance(texts, dict) else tuple(texts)
    options = {"seq_len": 8, "held_out_users": 0.2, "held_out_examples": 0.2, **options}
    prepare_store(ListSource(records, public), out, tokenizer=StoreTokenizer.load(), **options)
    return UserStore.open(out)


def view(store: UserStore, group_size: int = 3) -> dict[bytes, dict[str, Any]]:
    """Everything that training sees of each user: examples by split, and the ELS selection."""
    ids = store.user_ids()
    seen: dict[bytes, dict[str, Any]] = {user: {} for user in ids}
    for part in map(store.split, Split):
        for index, row in enumerate(part.rows):
            seen[ids[row]][str(part.name)] = rows_of(part, index)
    train = store.split(Split.TRAIN)
    counts, selection = select_once(train, group_size)
    for index, count in enumerate(counts.tolist()):
        chosen = selection.map([index] * count, range(count)).tolist()
        seen[ids[train.rows[index]]]["selection"] = chosen
    return seen


def rows_of(part: StoreSplit, user: int) -> list[list[int]]:
    """The tokens of each example of a split's user, by its index."""
    count = int(part.counts[user])
    rows = part.gather([user] * count, range(count))
    return [rows.row(number).tolist() for number in range(count)]


def examples_of(store: UserStore, user: bytes) -> list[list[int]]:
    """The tokens of each example of a user, whatever its split."""
    row, found = store.user_ids().index(user), []
    for part in map(store.split, Split):
        for index in np.flatnonzero(part.rows == row):
            found += rows_of(part, index)
    return found


def problems_of(path: Path) -> list[str]:
    """Where a store contradicts itself: its bytes, its index, its totals or its content hash."""
    store = UserStore.open(path, fixed_graph=True)
    index, problems = Index.read(path / store.meta.index), list(verify_store(path).problems)
    for number, segment in enumerate(store.segments):
        own = sorted(
            (int(start), int(start + length), int(tokens))
            for at, start, length, tokens in zip(
                *(index.spans[name] for name in ("segment", "start", "length", "tokens")),
                strict=True,
            )
            if at == number
        )
        ends = [0, *(end for _, end, _ in own)]
        if ends != [*(begin for begin, _, _ in own), len(segment.offsets) - 1]:
            problems.append(f"the spans of segment {number} do not hold each of its examples once")
        elif any(segment.offsets[e] - segment.offsets[b] != tokens for b, e, tokens in own):
            problems.append(f"the spans of segment {number} have other tokens than they say")
    if not index.totals().items() <= store.meta.totals.items():
        problems.append("the totals are not those of the index")
    chains = [[NO_EXAMPLES] * len(SPLIT_CODES) for _ in index.ids]
    for split, code in SPLIT_CODES.items():
        part = store.split(split)
        for user, (row, count) in enumerate(zip(part.rows, part.counts, strict=True)):
            rows = part.gather([user] * count, range(count))
            targets = None if rows.targets is None else rows.targets.view(np.uint8)
            chains[row][code] = prolong(NO_EXAMPLES, rows.tokens, rows.lengths, targets)
    read = replace(index, chains=[b"".join(own) for own in chains])
    if read.content_hash(store.meta) != store.meta.content_sha256:
        problems.append("the content hash is not that of users and tokens")
    return problems


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """One JSON value per line; a `str` or `bytes` row is written as it is."""
    texts = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    lines = [text if isinstance(text, bytes) else text.encode() for text in texts]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path
