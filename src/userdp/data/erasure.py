"""Take a person out of a store: a new generation without them, and the old one deleted.

What was made of their text elsewhere goes first, and can be removed twice. Then the generation
without them is written, and one rename lets it count: a kill before it leaves the store with them,
a kill after it the store without. What the store does not name any more is deleted then, or, after
a kill, by the next `UserStore.open`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from userdp.data import meta as layout
from userdp.data.files import index_folder
from userdp.data.index import Index
from userdp.data.meta import State, StateKind, StoreMeta, read_meta
from userdp.data.scores import leave_out_rows
from userdp.data.segments import Segment, SegmentFiles
from userdp.data.writer import write_generation


def erase_user(
    folder: Path, row: int, *, state: str, remove: Sequence[Path], scores: Sequence[Path]
) -> StoreMeta:
    """Take the user at ``row`` out of the store and off the disk; return the store's new facts.

    Guarantee: when this returns, the store is, to its content hash, the one that would have been
    prepared from the records of all others. Killed at any moment, it leaves the store with the
    user, or without.

    Call it under the store's lock (`userdp.data.files.locked`).

    Args:
        folder: of the store.
        row: of the user in the whole store.
        state: the id of the store's new state; random.
        remove: folders of runs made of people's text that are to go: weights, and what an audit
            kept.
        scores: files of scores of this store, which lose the user's rows.
    """
    meta = read_meta(folder)
    index = Index.read(index_folder(folder, meta))
    others = index.without(row)
    content = others.content_hash(seq_len=meta.seq_len, loss_mask=meta.loss_mask)
    for place in remove:
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    rows = _rows_of_scores(index, row)
    for place in scores:
        leave_out_rows(place, rows, was=meta.content_sha256, now=content)
    starts, revisions, new = others.spans["start"].copy(), dict(meta.revisions), []
    for number in np.unique(index.spans["segment"][index.spans["user"] == row]).tolist():
        here = np.flatnonzero(others.spans["segment"] == number)
        here = here[np.argsort(starts[here], kind="stable")]
        lengths = others.spans["length"][here]
        revisions[str(number)] = revisions.get(str(number), 0) + 1
        new.append(layout.segment_name(number, revisions[str(number)]))
        place = folder / layout.SEGMENTS / new[-1]
        shutil.rmtree(place, ignore_errors=True)  # of an erasure that was killed
        written = SegmentFiles(place, meta)
        written.copy(Segment.open(folder, meta, number), starts[here], lengths)
        written.close()
        starts[here] = np.cumsum(lengths) - lengths
    erased = State(id=state, kind=StateKind.ERASED, segments=meta.segments)
    return write_generation(
        folder,
        replace(meta, revisions=revisions, states=(*meta.states, erased)),
        replace(others, spans={**others.spans, "start": starts}),
        segments=new,
        records_read=-index.records[row],
    )


def _rows_of_scores(index: Index, row: int) -> dict[str, list[int]]:
    """Where a user's examples stand among those of each split, and how many they are."""
    spans = index.spans
    found = {}
    for split, code in layout.SPLIT_CODES.items():
        here = spans["split"] == code
        before = int(spans["length"][here & (spans["user"] < row)].sum())
        found[str(split)] = [before, int(spans["length"][here & (spans["user"] == row)].sum())]
    return found
