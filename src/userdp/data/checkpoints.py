"""Where a `prepare` that was killed goes on: after sorting, and after each segment since.

The working folder of a killed `prepare` stays, hidden; the next one for the same place takes it
over if everything that the store depends on is the same (`resume_key`), and removes it otherwise.
Nothing in it is a store. What the store will be does not depend on whether it was interrupted.

Working files are not synced, so they count only until the machine starts again: the key has the
system's boot id, and without one there is nothing to go on from.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from userdp.data import format as layout
from userdp.data.body import Body
from userdp.data.files import replace_bytes, write_arrow
from userdp.data.records import Tally

SCRATCH = "scratch"
_STATE = "state.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SPAN = ("split", "user", "segment", "start", "length")


def resume_key(**facts: Any) -> str | None:
    """A name for a whole run: all that its store depends on; None where there is no boot id."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        return None
    return sha256(json.dumps({"boot": boot, **facts}, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """How far a killed run was.

    Args:
        kept: records that were grouped.
        several: of them with several owners.
        done: how many were tokenized and lie in closed segments; the next is another user's.
        parts: files of users written since the start.
        segments: closed ones.
        sizes: bytes of the working files of the grouping stage.
        tally, examples, tokens: the books at that point.
    """

    kept: int
    several: int
    done: int
    parts: int
    segments: int
    sizes: dict[str, int]
    tally: dict[str, Any]
    examples: dict[str, int]
    tokens: dict[str, int]


class Checkpoints:
    """The state of one run, in its working folder.

    Args:
        work: the folder of the store in the making.
        key: see `resume_key`; None: nothing is written and nothing is found.
        tally: the books of the run.
    """

    def __init__(self, work: Path, key: str | None, tally: Tally) -> None:
        self._work = work
        self._folder = work / SCRATCH
        self._key = key
        self._tally = tally
        self._written = {"users": 0, "spans": 0}
        self._state: State | None = None

    def restore(self, body: Body) -> State | None:
        """What a killed run left here, put back into the books and ``body``; None: nothing."""
        state = None if self._key is None else read_state(self._work, self._key)
        if state is None:
            return None
        self._state = state
        self._tally.records_read = state.tally["read"]
        self._tally.records_stored = state.tally["stored"]
        self._tally.drops.update(state.tally["drops"])
        self._tally.example_drops.update(state.tally["example_drops"])
        for part in range(state.parts):
            users, spans = (_read(self._part(name, part)) for name in ("users", "spans"))
            body.take(
                [users.column(name).to_pylist() for name in ("id", "records", "chains")],
                np.stack([spans.column(name).to_numpy() for name in _SPAN], axis=1).tolist(),
            )
        body.segments = state.segments
        for split in body.examples:
            body.examples[split] = state.examples[split]
            body.tokens[split] = state.tokens[split]
        self._written = {"users": len(body.ids), "spans": len(body.rows)}
        return state

    def grouped(self, *, kept: int, several: int, files: list[Path]) -> None:
        """All records are read and sorted, into ``files``."""
        sizes = {file.name: file.stat().st_size for file in files}
        nothing = dict.fromkeys(map(str, layout.SPLIT_CODES), 0)
        self._write(
            State(
                kept=kept, several=several, done=0, parts=0, segments=0, sizes=sizes,
                tally=self._books(), examples=nothing, tokens=nothing,
            )
        )  # fmt: skip

    def segment(self, body: Body, records: int) -> None:
        """``body`` stands at the end of a segment and of a user, ``records`` further on."""
        before = self._state
        if before is None:
            return
        ids, spans = body.ids[self._written["users"] :], body.rows[self._written["spans"] :]
        first = self._written["users"]
        users = {
            "id": pa.array(ids, pa.large_binary()),
            "records": pa.array(body.records[first:], pa.int64()),
            "chains": pa.array([bytes(chain) for chain in body.chains[first:]], pa.binary()),
        }
        columns = np.array(spans, dtype=np.int64).reshape(-1, len(_SPAN))
        for name, table in (
            ("users", users),
            ("spans", {name: pa.array(columns[:, i]) for i, name in enumerate(_SPAN)}),
        ):
            path = self._part(name, before.parts)
            path.unlink(missing_ok=True)  # of a run killed between this and the state
            write_arrow(path, table, 0o600)
        self._written = {"users": len(body.ids), "spans": len(body.rows)}
        self._write(
            State(
                kept=before.kept, several=before.several, done=before.done + records,
                parts=before.parts + 1, segments=body.segments, sizes=before.sizes,
                tally=self._books(), examples=_by_name(body.examples),
                tokens=_by_name(body.tokens),
            )
        )  # fmt: skip

    def _part(self, name: str, number: int) -> Path:
        return self._folder / f"{name}-{number:05d}.arrow"

    def _books(self) -> dict[str, Any]:
        tally = self._tally
        return {
            "read": tally.records_read,
            "stored": tally.records_stored,
            "drops": dict(tally.drops),
            "example_drops": dict(tally.example_drops),
        }

    def _write(self, state: State) -> None:
        if self._key is None:
            return
        fields = {name: getattr(state, name) for name in State.__slots__}
        replace_bytes(self._folder / _STATE, json.dumps({"key": self._key, **fields}).encode())
        self._state = state


def read_state(work: Path, key: str) -> State | None:
    """The state in a working folder, if it is a run's of this key and its files are there."""
    try:
        raw = json.loads((work / SCRATCH / _STATE).read_bytes())
        if raw.pop("key") != key:
            return None
        state = State(**raw)
        sizes = {name: (work / SCRATCH / name).stat().st_size for name in state.sizes}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if sizes == state.sizes else None


def clear(work: Path, state: State) -> None:
    """Remove from a working folder what came after ``state``."""
    segments = {layout.segment_name(number) for number in range(state.segments)}
    for entry in work.iterdir():
        if entry.name in (SCRATCH, layout.SEGMENTS):
            continue
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for entry in (work / layout.SEGMENTS).iterdir():
        if entry.name not in segments:
            shutil.rmtree(entry)


def _by_name(counts: dict[Any, int]) -> dict[str, int]:
    return {str(split): count for split, count in counts.items()}


def _read(path: Path) -> pa.Table:
    with path.open("rb") as file:
        return pa.ipc.open_file(file).read_all()
