"""Take a person out of a store: at once for every reader, and then from the disk.

1. ``erasure.json`` says what is to be done, without saying for whom.
2. A new generation of the index leaves the person out, and one rename lets it count. This is the
   decision: a kill before it leaves the store with them, a kill after it the store without them.
3. What was made of their text elsewhere is removed, the segments are compacted, and everything
   that the store does not name any more is deleted; last of all ``erasure.json``.

What a kill leaves of step 3 is finished when the store is next opened: it needs no id.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from userdp import files
from userdp.codec import decode
from userdp.data import format as layout
from userdp.data.checkpoints import clear
from userdp.data.compaction import compact, write_generation
from userdp.data.index import Index
from userdp.data.locking import locked
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.near_ids import near_colliding
from userdp.data.scores import leave_out_rows
from userdp.data.segment import offsets_of
from userdp.data.splits import Split
from userdp.data.states import State, StateKind
from userdp.errors import UseError, UserdpError

_JOURNAL: dict[str, Any] = {
    "state": str,
    "remove": tuple[str, ...],
    "scores": tuple[str, ...],
    "rows": dict[str, tuple[int, ...]],
    "content": tuple[str, ...],
}
"""What stands in erasure.json."""
_OF_A_RUN = ("model", "adapter", "checkpoints", "audit/references")
_LEDGER = "ledger.jsonl"
"""Of a run, as `userdp.ledger.folder` names them, which nothing here may import."""


def erase_user(
    folder: Path, row: int, *, state: str, remove: Sequence[Path], scores: Sequence[Path]
) -> StoreMeta:
    """Take the user at ``row`` out of the store and off the disk; return the store's new facts.

    Guarantee: when this returns, the store is, to its content hash, the one that would have been
    prepared from the records of all others. Killed at any moment, it leaves the store with the
    user, or without; in the second case the next opening finishes what is left.

    Call it under the store's lock (`userdp.data.locking`).

    Args:
        folder: of the store.
        row: of the user in the whole store.
        state: the id of the store's new state; random.
        remove: folders of runs made of people's text that are to go: weights, and what an audit
            kept.
        scores: files of scores of this store, which lose the user's rows.
    """
    meta = read_meta(folder)
    index = Index.read(folder / layout.INDEX / layout.segment_name(meta.generation))
    others = index.without(row)
    content = others.content_hash(seq_len=meta.seq_len, loss_mask=meta.loss_mask)
    journal = {
        "state": state,
        "remove": [str(path.resolve()) for path in remove],
        "scores": [str(path.resolve()) for path in scores],
        "rows": _rows_of_scores(index, row),
        "content": [meta.content_sha256, content],
    }
    files.write_json(folder / layout.ERASURE, journal, mode=files.OPERATOR_FILE)
    erased = State(id=state, kind=StateKind.ERASED, segments=meta.segments)
    write_generation(
        folder,
        replace(
            meta,
            content_sha256=content,
            totals=_totals(folder, meta, index, row),
            holes=True,
            states=(*meta.states, erased),
        ),
        others,
        [],
        old=meta,
    )
    finish_erasure(folder)
    return read_meta(folder)


def finish_erasure(folder: Path) -> None:
    """Do what an erasure has left to do; nothing if none was decided. Call it under the lock."""
    path = folder / layout.ERASURE
    meta = read_meta(folder)
    if not path.exists():
        return
    journal = _read(path)
    if journal["state"] == meta.state.id:
        remove = [Path(place) for place in journal["remove"]]
        _require_of_runs(path, remove)
        for place in remove:
            _remove(place)
        was, now = journal["content"]
        for place in map(Path, journal["scores"]):
            leave_out_rows(place, journal["rows"], was=was, now=now)
        clear(folder, compact(folder, meta), None)
    # Else the erasure was killed before it was decided, and the user is in the store as ever.
    path.unlink()
    files.sync(folder)


def _read(path: Path) -> dict[str, Any]:
    """What an erasure has left to do; `UseError` where the file is damaged."""
    journal = files.read_json(path, what="what is left of an erasure")
    for name, hint in _JOURNAL.items():
        decode(hint, journal.get(name), what=f"{name} in {path}")
    if len(journal["content"]) != 2 or any(len(row) != 2 for row in journal["rows"].values()):
        raise UseError(f"{path} is damaged: it does not say whose scores are left to erase")
    return journal


def settle_erasure(folder: Path) -> None:
    """`finish_erasure`, for readers: nothing where another process holds the store, or the disk
    refuses; the person is out of the index in any case.
    """
    if not (folder / layout.ERASURE).exists():
        return
    try:
        with locked(folder):
            finish_erasure(folder)
    except (UserdpError, OSError):
        return


def _rows_of_scores(index: Index, row: int) -> dict[str, list[int]]:
    """Where a user's examples stand among those of each split, and how many they are."""
    spans = index.spans
    found = {}
    for split, code in layout.SPLIT_CODES.items():
        here = spans["split"] == code
        before = int(spans["length"][here & (spans["user"] < row)].sum())
        found[str(split)] = [before, int(spans["length"][here & (spans["user"] == row)].sum())]
    return found


def _totals(folder: Path, meta: StoreMeta, index: Index, row: int) -> dict[str, Any]:
    """`StoreMeta.totals` without a user. What of their records was dropped nobody can tell."""
    spans = index.spans
    own = spans["user"] == row
    tokens = np.zeros(len(own), dtype=np.int64)
    for place in np.flatnonzero(own):
        offsets = offsets_of(folder, meta, int(spans["segment"][place]))
        start, length = int(spans["start"][place]), int(spans["length"][place])
        tokens[place] = offsets[start + length] - offsets[start]
    splits = {}
    for split in Split:
        here = own & (spans["split"] == layout.SPLIT_CODES[split])
        was = meta.totals["splits"][str(split)]
        splits[str(split)] = {
            "users": was["users"] - bool(here.any()),
            "examples": was["examples"] - int(spans["length"][here].sum()),
            "tokens": was["tokens"] - int(tokens[here].sum()),
        }
    records = index.records[row]
    ids = [*index.ids[:row], *index.ids[row + 1 :]]
    return {
        "records_read": meta.totals["records_read"] - records,
        "records_stored": meta.totals["records_stored"] - records,
        "users": len(ids),
        "near_colliding_users": near_colliding(ids),
        "examples": sum(part["examples"] for part in splits.values()),
        "tokens": sum(part["tokens"] for part in splits.values()),
        "splits": splits,
    }


def _require_of_runs(path: Path, remove: Sequence[Path]) -> None:
    """`UseError` where something would be removed that no run has.

    Somebody else may have written the file of a store that was handed on, and opening it removes.
    """
    for place in remove:
        runs = [place.parents[name.count("/")] for name in _OF_A_RUN if place.match(name)]
        if os.path.lexists(place) and not any((run / _LEDGER).is_file() for run in runs):
            raise UseError(
                f"{path} says that {place} is to be removed, which is nothing of a run: nothing "
                "was removed",
                hint=f"if the store came from somebody else, delete its {path.name} and ask them "
                "for a store of which no erasure is unfinished",
            )


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
