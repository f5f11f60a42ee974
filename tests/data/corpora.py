"""Small corpora, and plain-Python readings of a store to compare with."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from userdp.data.pipeline import prepare_store
from userdp.data.records import Record
from userdp.data.selection import FixedSelection, select_once
from userdp.data.sources.source import Source
from userdp.data.splits import Split
from userdp.data.store_contents import NO_EXAMPLES, USERS, chain_of, content_hash, prolong
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import StoreSplit, UserStore, verify_store

WORDS = [
    "alpha", "beta", "gamma", "delta", "store", "user", "noise", "clip", "it", "é", "日本", "🙂",
]  # fmt: skip
REAL_DATA = Path(__file__).parents[3] / "shared" / "data"


def ListSource(held: Iterable[Record], **flags: bool) -> Source:
    """Records from a list, as a source; also how little a source needs."""
    return Source(kind="list", places=(tuple(held),), read=lambda held, at: iter(held), **flags)


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
    texts: dict[bytes, list[str]] | Sequence[Record], out: Path, **options: Any
) -> UserStore:
    """The store of a corpus."""
    records = interleaved(texts) if isinstance(texts, dict) else tuple(texts)
    options = {"seq_len": 8, "held_out_users": 0.2, "held_out_examples": 0.2, **options}
    prepare_store(ListSource(records), out, tokenizer=StoreTokenizer.load(), **options)
    return UserStore.open(out)


def view(store: UserStore, group_size: int = 3) -> dict[bytes, dict[str, Any]]:
    """Everything that training sees of each user: examples by split, and the ELS selection."""
    ids = store.user_ids()
    seen: dict[bytes, dict[str, Any]] = {user: {} for user in ids}
    for part in map(store.split, Split):
        for index, row in enumerate(part.rows):
            seen[ids[row]][str(part.name)] = rows_of(part, index)
    train = store.split(Split.TRAIN)
    for row, chosen in zip(train.rows, choices_of(select_once(train, group_size)), strict=True):
        seen[ids[row]]["selection"] = chosen
    return seen


def choices_of(selection: FixedSelection) -> list[list[int]]:
    """The examples that a selection keeps of each user, best first."""
    counts = selection.counts.tolist()
    return [selection.map([user] * n, range(n)).tolist() for user, n in enumerate(counts)]


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
    """Where a store contradicts itself: its bytes, its totals or its content hash."""
    store, problems = UserStore.open(path, fixed_graph=True), list(verify_store(path))
    table = store.table.to_pydict()
    for split in Split:
        part, held = store.split(split), store.examples[split]
        table[chain_of(split)] = [NO_EXAMPLES] * store.users
        for user, (row, count) in enumerate(zip(part.rows, part.counts, strict=True)):
            rows = part.gather([user] * count, range(count))
            targets = None if rows.targets is None else rows.targets.view(np.uint8)
            table[chain_of(split)][row] = prolong(NO_EXAMPLES, rows.tokens, rows.lengths, targets)
        examples = int(part.counts.sum())
        found = {"users": len(part.rows), "examples": examples, "tokens": len(held.tokens)}
        if store.meta.totals["splits"][split] != found or len(held.offsets) != examples + 1:
            problems.append(f"the totals of {split} are not those of its files")
    if sum(table["records"]) != store.meta.totals["records_stored"]:
        problems.append("the number of stored records is not that of the users")
    read = content_hash(pa.RecordBatch.from_pydict(table, USERS), store.meta)
    if read != store.meta.content_sha256:
        problems.append("the content hash is not that of users and tokens")
    return problems


def write_jsonl(path: Path, rows: Iterable[Any]) -> Path:
    """One JSON value per line; a `str` or `bytes` row is written as it is."""
    texts = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    lines = [text if isinstance(text, bytes) else text.encode() for text in texts]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path
