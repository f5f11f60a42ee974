"""A part of a store that one process writes by itself: some users' examples, and their index.

`userdp.data.spark` writes a store by many processes: each brings all records of some users into
examples, segments and an index of its own, which `StoreWriter.adopt` then takes over. What becomes
of a user's records is decided by `Examples`, as in a single process.

A part is a folder::

    segments/00000/ …     as in a store, numbered from 0
    index/                users, ids and spans, numbered from 0
    part.json             the books, and the digests of the segments' files; written last

It appears in one rename. Its content is a function of the records alone, so whichever of several
attempts is first to finish counts, and nobody needs to know which it was.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from userdp.data import format as layout
from userdp.data.blocks import digested
from userdp.data.columns import Columns
from userdp.data.examples import Examples, Recipe
from userdp.data.index import Index, KnownOnDisk
from userdp.data.records import Tally
from userdp.data.segments import SegmentWriter
from userdp.data.tokenize import StoreTokenizer
from userdp.files import read_json, write_json

_FACTS = "part.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartJob:
    """What every process that writes parts of one store has to know.

    Args:
        recipe: see there.
        tokenizer: the bytes of tokenizer.json.
        end_of_text_id: of the store.
        known: the folder of the index that is added to; None for a new store.
    """

    recipe: Recipe
    tokenizer: bytes
    end_of_text_id: int | None
    known: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part that was written.

    Args:
        folder: where it lies.
        segments: how many there are.
        tally: what `Tally.facts` says of its users' records.
        examples, tokens: of each split.
        files: by their place in the part: facts for ``meta.json``, and the digests of the blocks in
            hexadecimal.
    """

    folder: Path
    segments: int
    tally: dict[str, Any]
    examples: dict[str, int]
    tokens: dict[str, int]
    files: dict[str, tuple[dict[str, Any], str]]

    @classmethod
    def read(cls, folder: Path) -> Part:
        """The part in ``folder``."""
        return cls(folder=folder, **read_json(folder / _FACTS, what="the part of a store"))

    def index(self) -> Index:
        """Its users and spans, numbered from 0."""
        return Index.read(self.folder / layout.INDEX)


def write_part(blocks: Iterable[Columns], place: Path, job: PartJob) -> None:
    """Write the part of a store that these records make, unless it is there already.

    Guarantee: ``place`` is a whole part afterwards. If it was one before, no record is asked for.

    Args:
        blocks: all records of some users, by (user bytes, order).
        place: the part's folder.
        job: see there.
    """
    if place.exists():
        return
    folder = place.with_name(f".{place.name}-{secrets.token_hex(4)}")
    folder.mkdir(parents=True)
    try:
        _write(blocks, folder, job)
        with suppress(OSError):  # another attempt was first
            folder.rename(place)
        if not place.exists():
            raise FileNotFoundError(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(blocks: Iterable[Columns], folder: Path, job: PartJob) -> None:
    (folder / layout.SEGMENTS).mkdir()
    tokenizer = StoreTokenizer.from_bytes(job.tokenizer, where=Path(layout.TOKENIZER))
    writer = SegmentWriter(
        folder,
        dtype=job.recipe.token_dtype,
        loss_mask=job.recipe.loss_mask,
        known=None if job.known is None else KnownOnDisk(job.known),
    )
    tally = Tally()
    examples = Examples(
        writer,
        tokenizer=tokenizer.with_end(job.end_of_text_id),
        recipe=job.recipe,
        tally=tally,
    )
    try:
        for block in blocks:
            examples.add(examples.encode(block))
        examples.flush()
        writer.close()
    except BaseException:
        writer.abandon()
        raise
    writer.written().write(folder / layout.INDEX)
    files = {}
    for name in writer.new_files():
        facts, digests = digested(folder / name)
        files[str(name)] = facts, digests.hex()
    part = Part(
        folder=folder,
        segments=writer.segments,
        tally=tally.facts(),
        examples={str(split): count for split, count in writer.examples.items()},
        tokens={str(split): count for split, count in writer.tokens.items()},
        files=files,
    )
    facts = asdict(part)
    del facts["folder"]
    write_json(folder / _FACTS, facts)


def parts_in(folder: Path) -> list[Part]:
    """All parts in a folder, in the order of their names."""
    return [Part.read(place) for place in sorted(folder.glob("[!.]*"))]


def done_in(folder: Path) -> int:
    """How many parts lie in a folder."""
    try:
        return sum(not entry.name.startswith(".") for entry in os.scandir(folder))
    except FileNotFoundError:
        return 0
