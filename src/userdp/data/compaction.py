"""Rewrite the segments that hold text of nobody: what an erasure leaves behind in them.

A *hole* is an example of a segment that no span of the index names. Compaction needs to know
nothing of whose text it was: it copies the examples that spans name, in their order, into a new
folder, and swaps ``meta.json`` in one rename. Killed at any moment, it begins again.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.blocks import read_blocks, seal
from userdp.data.checkpoints import clear
from userdp.data.index import Index
from userdp.data.meta import StoreMeta
from userdp.data.segment import Segment, offsets_of
from userdp.data.segments import SegmentFiles
from userdp.files import sync, write_json

_EXAMPLES_AT_ONCE = 2**16


def compact(folder: Path, meta: StoreMeta) -> StoreMeta:
    """Rewrite every segment with a hole, and let the new ones count; return the new facts.

    Call it under the store's lock. The logical content of the store is what it was.

    Args:
        folder: of the store.
        meta: its facts; nothing is done unless it says that there are holes.
    """
    if not meta.holes:
        return meta
    index = Index.read(folder / layout.INDEX / layout.segment_name(meta.generation))
    spans = dict(index.spans)
    starts = spans["start"].copy()
    revisions = dict(meta.revisions)
    kept_files = dict(meta.files)
    new_files: list[Path] = []
    for number in range(meta.segments):
        here = np.flatnonzero(spans["segment"] == number)
        here = here[np.argsort(spans["start"][here], kind="stable")]
        begins, lengths = spans["start"][here], spans["length"][here]
        if lengths.sum() == len(offsets_of(folder, meta, number)) - 1:
            continue
        revision = revisions.get(str(number), 0) + 1
        new = folder / layout.SEGMENTS / layout.segment_name(number, revision)
        shutil.rmtree(new, ignore_errors=True)  # of a compaction that was killed
        _rewrite(Segment.open(folder, meta, number), new, begins, lengths, meta)
        sync(new)
        starts[here] = np.cumsum(lengths) - lengths
        revisions[str(number)] = revision
        for file in (layout.TOKENS, layout.OFFSETS, *((layout.TARGETS,) * meta.loss_mask)):
            del kept_files[f"{layout.SEGMENTS}/{meta.segment_folder(number)}/{file}"]
            new_files.append(new.relative_to(folder) / file)
    sync(folder / layout.SEGMENTS)
    written = Index(index.ids, index.records, index.chains, {**spans, "start": starts})
    whole = replace(meta, revisions=revisions, holes=False, files=kept_files)
    return write_generation(folder, whole, written, new_files, old=meta)


def write_generation(
    folder: Path, meta: StoreMeta, index: Index, new_files: list[Path], *, old: StoreMeta
) -> StoreMeta:
    """Write the next generation of the index, and let it and ``new_files`` count.

    Args:
        folder: of the store.
        meta: the facts, but for the generation and the files that change.
        index: to write.
        new_files: relative to the store; written and synced.
        old: the facts of the generation before.
    """
    generation = Path(layout.INDEX) / layout.segment_name(meta.generation + 1)
    shutil.rmtree(folder / generation, ignore_errors=True)  # of a change that was killed
    index.write(folder / generation)
    tables = [generation / table for table in (layout.USERS, layout.USER_IDS, layout.SPANS)]
    kept = {
        file: sums for file, sums in meta.files.items() if not file.startswith(f"{layout.INDEX}/")
    }
    new = replace(
        meta,
        generation=meta.generation + 1,
        files=seal(folder, generation, kept, [*new_files, *tables], known=read_blocks(folder, old)),
    )
    for changed, _, _ in os.walk(folder / layout.INDEX):
        sync(Path(changed))
    write_json(folder / layout.META, new.to_dict())
    clear(folder, new, None)
    return new


def _rewrite(
    old: Segment,
    new: Path,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    meta: StoreMeta,
) -> None:
    """Copy examples ``begins[i]`` to ``begins[i] + lengths[i]`` of a segment, one after another."""
    offsets, tokens, targets = old.offsets, old.tokens, old.targets
    written = SegmentFiles(
        new, np.dtype(meta.token_dtype).newbyteorder("<"), loss_mask=meta.loss_mask
    )
    for begin, count in zip(begins.tolist(), lengths.tolist(), strict=True):
        for first in range(begin, begin + count, _EXAMPLES_AT_ONCE):
            last = min(first + _EXAMPLES_AT_ONCE, begin + count)
            part = slice(int(offsets[first]), int(offsets[last]))
            written.append(
                tokens[part],
                np.diff(offsets[first : last + 1]),
                None if targets is None else targets[part],
            )
    written.close()
