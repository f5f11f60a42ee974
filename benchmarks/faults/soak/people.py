"""10^6 users in a store, and one user of 10^6 records: time and memory of each command."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.soak.measured import cost_of, cost_of_process
from benchmarks.faults.soak.tiny import options

STAGES = (10_000, 100_000, 1_000_000)
_USER = "user0000007"


def prepare_few(folder: Path) -> Path:
    """A store of forty people, in ``folder/store``; the one that is there, if there is one."""
    store = folder / "store"
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # In a process of its own: a child's peak of memory begins at what its parent held.
        _script("must(prepare(folder))", folder)
    return store


def of_users(folder: Path, stage: int) -> Iterator[dict[str, Any]]:
    """A store of many users of one record each."""
    return _rows(folder / f"users-{stage}", users=stage, records=1)


def of_records(folder: Path, stage: int) -> Iterator[dict[str, Any]]:
    """A store of a hundred users, of whom one holds many records."""
    return _rows(folder / f"records-{stage}", users=100, records=stage)


def _rows(folder: Path, *, users: int, records: int) -> Iterator[dict[str, Any]]:
    """One row a command; the folder goes when all is measured."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _script(f"write({users}, {records})", folder)
    store, run = folder / "store", folder / "run"
    commands: list[tuple[str, tuple[object, ...]]] = [
        ("prepare", (
            "prepare", folder / "in.jsonl", "--out", store, "--tokenizer",
            folder / "tokenizer.json", "--seq-len", 8, "--held-out-users", 0.05,
        )),
        ("stats", ("stats", store)),
        ("stats --epsilon", ("stats", store, "--epsilon", 1)),
        ("train, 10 steps", (
            "train", store, "--out", run, "--allow-large-delta",
            *options(population=users, steps=10),
        )),
        ("members --user", ("members", store, "--user", _USER)),
        ("verify STORE", ("verify", store)),
        ("forget --user", ("forget", store, "--user", _USER)),
        ("verify STORE after", ("verify", store)),
    ]  # fmt: skip
    for what, arguments in commands:
        yield {"what": what, **asdict(cost_of(*arguments))}
    shutil.rmtree(folder)


def _script(what: str, folder: Path) -> None:
    cost_of_process([sys.executable, "-c", _SCRIPT.format(what=what), str(folder)])


_SCRIPT = """
import json, random, sys
from pathlib import Path
from benchmarks.faults.crashes.scenes.base import WORDS, must, prepare, write_tokenizer

folder = Path(sys.argv[1])

def write(users, records):
    "User 7 has so many records, all others one each, mixed."
    write_tokenizer(folder / "tokenizer.json")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(4, 7))) for _ in range(1000)]
    owners = [*range(users), *([7] * (records - 1))]
    draw.shuffle(owners)
    with (folder / "in.jsonl").open("w", encoding="utf-8") as file:
        for owner in owners:
            row = {{"user": f"user{{owner:07d}}", "text": draw.choice(texts)}}
            file.write(json.dumps(row) + chr(10))

{what}
"""
