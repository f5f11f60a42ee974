"""Where a `prepare` that was killed or interrupted goes on: after sorting, and each segment since.

What such a run leaves in a store's folder (for a new store: a hidden one beside its place) stays
there. The next run takes it over if everything that the store depends on is the same
(`resume_key`), and removes it otherwise. Nothing of it counts until ``meta.json`` names it, and
what the store will be does not depend on whether it was interrupted.

Working files are not synced, so they count only until the machine starts again: the key has the
system's boot id, and without one there is nothing to go on from.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from userdp.data import format as layout
from userdp.data.index import Index
from userdp.data.meta import StoreMeta
from userdp.data.records import Tally
from userdp.data.segments import SegmentWriter
from userdp.data.splits import Split
from userdp.data.states import StateKind
from userdp.files import sweep, write_json
from userdp.strict_json import parse

SCRATCH = "scratch"
_STATE = "state.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def resume_key(meta: StoreMeta, facts: dict[str, Any] | None) -> str | None:
    """A name for a whole run; None where a killed one cannot be gone on with.

    Args:
        meta: of the store that is added to.
        facts: all else that the new store depends on; None where that cannot be told.
    """
    if facts is None:
        return None
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        return None
    whole = {"boot": boot, "store": meta.to_dict(), **facts}
    return sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """How far a killed run was.

    Args:
        kept: records that were grouped.
        several: of them with several owners.
        done: how many were tokenized and lie in closed segments; the next is another user's.
        parts: parts of the index written since the start.
        segments: of the store, closed ones.
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
    """The state of one run, in its store's folder.

    Args:
        writer: of the run.
        key: see `resume_key`; None: nothing is written and nothing is found.
        tally: the books of the run.
    """

    def __init__(self, writer: SegmentWriter, key: str | None, tally: Tally) -> None:
        self._writer, self._key, self._tally = writer, key, tally
        self._folder = writer.folder / SCRATCH
        self._users = self._rows = 0  # of the writer's, in parts that are written
        self._state: State | None = None

    def restore(self) -> State | None:
        """What a killed run left here, put back into the books and the writer; None: nothing."""
        state = read_state(self._writer.folder, self._key)
        if state is None:
            return None
        self._tally.add(state.tally)
        for part in range(state.parts):
            self._writer.take(Index.read(self._part(part)))
        self._writer.segments = state.segments
        for split in Split:
            self._writer.examples[split] = state.examples[split]
            self._writer.tokens[split] = state.tokens[split]
        self._users, self._rows = len(self._writer.ids), len(self._writer.rows)
        self._state = state
        return state

    def grouped(self, *, kept: int, several: int, files: list[Path]) -> None:
        """All records are read and grouped, or about to be, and lie in ``files``."""
        sizes = {str(file.relative_to(self._folder)): file.stat().st_size for file in files}
        self._write(
            State(kept=kept, several=several, done=0, parts=0, sizes=sizes, **self._books())
        )

    def segment(self, records: int) -> None:
        """The writer stands at the end of a segment and of a user, ``records`` further on."""
        before = self._state
        if before is None:
            return
        part = self._part(before.parts)
        shutil.rmtree(part, ignore_errors=True)  # of a run killed between this and the state
        self._writer.written(users=self._users, rows=self._rows).write(part)
        self._users, self._rows = len(self._writer.ids), len(self._writer.rows)
        done, parts = before.done + records, before.parts + 1
        self._write(replace(before, done=done, parts=parts, **self._books()))

    def _part(self, number: int) -> Path:
        return self._folder / f"index-{number:05d}"

    def _books(self) -> dict[str, Any]:
        writer = self._writer
        return {
            "segments": writer.segments,
            "tally": self._tally.facts(),
            "examples": writer.examples,
            "tokens": writer.tokens,
        }

    def _write(self, state: State) -> None:
        if self._key is not None:
            facts = {name: getattr(state, name) for name in State.__slots__}
            write_json(self._folder / _STATE, {"key": self._key, **facts})
            self._state = state


def read_state(folder: Path, key: str | None) -> State | None:
    """The state in a store's folder, if it is a run's of this key and its files are there."""
    try:
        raw = parse((folder / SCRATCH / _STATE).read_bytes())
        if raw.pop("key") != key:
            return None
        state = State(**raw)
        sizes = {name: (folder / SCRATCH / name).stat().st_size for name in state.sizes}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return state if sizes == state.sizes else None


def forget_state(folder: Path) -> None:
    """Let there be nothing in a store's folder to go on from; call before any of it is removed.

    A kill in the middle of the removal would leave a state that names what is gone.
    """
    with suppress(OSError):
        (folder / SCRATCH / _STATE).unlink()


def kept_for(place: Path) -> Path | None:
    """Where an interrupted writer of the store at ``place`` left what the next one goes on with."""
    for folder in (place, *place.parent.glob(f".{place.name}.partial-*")):
        if (folder / SCRATCH / _STATE).exists():
            return folder
    return None


def clear(folder: Path, meta: StoreMeta, state: State | None) -> None:
    """Remove from a store's folder what neither ``meta`` nor ``state`` names.

    The generation of the index before the one that counts stays, for readers that opened it, in a
    store of which nobody was erased.
    """
    if state is None:
        forget_state(folder)
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
    sweep(folder)
    segments = range(meta.segments if state is None else state.segments)
    # A generation of before an erasure names who was erased.
    erased = any(one.kind is StateKind.ERASED for one in meta.states)
    oldest = meta.generation if erased else max(meta.generation - 1, 0)
    generations = range(oldest, meta.generation + 1)
    for name, named in (
        (layout.SEGMENTS, {meta.segment_folder(number) for number in segments}),
        (layout.INDEX, {layout.segment_name(number) for number in generations}),
    ):
        for entry in (folder / name).iterdir():
            if entry.name not in named:
                shutil.rmtree(entry, ignore_errors=True)
