"""Add records to a store without rewriting it."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from userdp.data import format as layout
from userdp.data.body import Body, Index, checksums
from userdp.data.files import replace_bytes
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.records import Tally
from userdp.data.store import UserStore
from userdp.data.writer import index_files, meta_text, totals_of
from userdp.errors import UseError
from userdp.files import sync

_SCRATCH = ".append-scratch"


class StoreAppender:
    """Writes users one after another, in order of their ids' bytes, into new segments.

    A context manager. The store changes in one rename, when `finish` swaps ``meta.json``; until
    then, and after leaving the block early or a kill, it is as it was. Readers that have it open
    keep the generation that they opened. One appender at a time: the store's folder is locked.

    The store gets a new ``store_id`` and content hash, as it is other data: a run that began
    before refuses to resume on it.

    Raises:
        UseError: no store of this version is at ``path``, it lacks its user ids, or another
            process appends to it.
    """

    def __init__(self, path: Path, *, segment_tokens: int = layout.SEGMENT_TOKENS) -> None:
        self._path = path.absolute()
        read_meta(self._path)
        self._lock = os.open(self._path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.meta = read_meta(self._path)
            _remove_abandoned(self._path, self.meta)
            store = UserStore.open(self._path, fixed_graph=True)
            self.body = Body(
                self._path,
                dtype=self.meta.token_dtype,
                loss_mask=self.meta.loss_mask,
                old=read_index(store),
                first_segment=self.meta.segments,
                segment_tokens=segment_tokens,
            )
        except BlockingIOError:
            os.close(self._lock)
            raise UseError(
                f"another process appends to the store at {path}", hint="wait until it is done"
            ) from None
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def loss_mask(self) -> bool:
        """Whether each write brings targets."""
        return self.meta.loss_mask

    @property
    def tokenizer_path(self) -> Path:
        """The store's tokenizer.json."""
        return self._path / layout.TOKENIZER

    @property
    def scratch(self) -> Path:
        """A folder for working files, on the store's disk; gone when the appender closes."""
        return self._path / _SCRATCH

    def finish(
        self, *, source: dict[str, Any], tally: Tally, ownership: dict[str, Any] | None = None
    ) -> StoreMeta:
        """Write the new generation of the index, sync, and let it count.

        Args:
            source: what the source says of itself.
            tally: its books must balance.
            ownership: replaces the store's, unless None.
        """
        tally.balance()
        self.body.close()
        index = self.body.index()
        old = self.meta
        generation = Path(layout.INDEX) / layout.segment_name(old.generation + 1)
        index.write(self._path / generation)
        kept = {name: sums for name, sums in old.files.items() if not _is_index(name)}
        meta = replace(
            old,
            store_id=secrets.token_hex(16),
            content_sha256=index.content_hash(seq_len=old.seq_len, loss_mask=old.loss_mask),
            drops=_added(old.drops, tally.drops),
            example_drops=_added(old.example_drops, tally.example_drops),
            totals=totals_of(self.body, index, tally, old.totals),
            generation=old.generation + 1,
            ownership=ownership or old.ownership,
            segments=self.body.segments,
            appended=[*old.appended, source],
            files={
                **kept,
                **checksums(self._path, self.body.new_files()),
                **checksums(self._path, index_files(generation)),
            },
        )
        for folder, _, _ in os.walk(self._path):
            sync(Path(folder))
        replace_bytes(self._path / layout.META, meta_text(meta))
        self.meta = meta
        return meta

    def __enter__(self) -> StoreAppender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.body.abandon()
        _remove_abandoned(self._path, self.meta)
        os.close(self._lock)


def read_index(store: UserStore) -> Index:
    """The tables of the generation that a store was opened with."""
    table = store.users_table()
    return Index(
        ids=store.user_ids(),
        records=table.column("records").to_pylist(),
        chains=table.column("chains").to_pylist(),
        spans=store.spans(),
    )


def _remove_abandoned(path: Path, meta: StoreMeta) -> None:
    """Remove what ``meta`` does not name, and generations older than the one before it."""
    shutil.rmtree(path / _SCRATCH, ignore_errors=True)
    (path / f".{layout.META}.partial").unlink(missing_ok=True)
    segments = {layout.segment_name(number) for number in range(meta.segments)}
    newest = (meta.generation - 1, meta.generation)
    generations = {layout.segment_name(number) for number in newest if number >= 0}
    for folder, named in ((layout.SEGMENTS, segments), (layout.INDEX, generations)):
        for entry in (path / folder).iterdir():
            if entry.name not in named:
                shutil.rmtree(entry, ignore_errors=True)


def _is_index(name: str) -> bool:
    return name.startswith(f"{layout.INDEX}/")


def _added(old: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    names = sorted({*old, *new})
    return {name: old.get(name, 0) + new.get(name, 0) for name in names}
