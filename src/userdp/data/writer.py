"""Write a user store: all of it, or nothing."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.body import Body, Index, checksums
from userdp.data.checkpoints import SCRATCH, Checkpoints, clear, read_state
from userdp.data.files import write_bytes
from userdp.data.meta import StoreMeta, is_store
from userdp.data.near_ids import near_colliding
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError
from userdp.files import sync


class StoreWriter:
    """Writes users one after another, in order of their ids' bytes.

    A context manager. The store appears at ``out`` when `finish` returns; leaving the block
    before that removes everything. What a killed process left behind (a hidden folder beside
    ``out``) goes when the next writer for ``out`` starts, or is gone on with: see `checkpoints`.

    Args:
        out: the store's place.
        tokenizer: is copied into the store.
        seq_len: most tokens of an example.
        overwrite: replace the store that lies at ``out``; its privacy ledger is carried over,
            since the people stay charged for what was released.
        segment_tokens: a new segment begins once one holds this many.
        loss_mask: whether each write brings targets.
        resume_key: a killed run of this key is gone on with; None: none is.

    Raises:
        UseError: something lies at ``out`` and ``overwrite`` is false, or it is not a store.
    """

    def __init__(
        self,
        out: Path,
        *,
        tokenizer: StoreTokenizer,
        seq_len: int,
        overwrite: bool = False,
        segment_tokens: int = layout.SEGMENT_TOKENS,
        loss_mask: bool = False,
        resume_key: str | None = None,
    ) -> None:
        self._out = out.absolute()
        _recover(self._out)
        require_free(self._out, overwrite=overwrite)
        self._overwrite = overwrite
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self.loss_mask = loss_mask
        self._resume_key = resume_key
        self._out.parent.mkdir(parents=True, exist_ok=True)
        found = _abandoned(self._out, resume_key)
        if found is None:
            self._work = self._out.with_name(f".{self._out.name}.partial-{secrets.token_hex(4)}")
            self._work.mkdir(mode=0o700)
            self._lock = os.open(self._work, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self._work / layout.SEGMENTS).mkdir()
        else:
            self._work, self._lock = found
        self.body = Body(
            self._work, dtype=tokenizer.dtype, loss_mask=loss_mask, segment_tokens=segment_tokens
        )

    @property
    def scratch(self) -> Path:
        """A folder for working files, on the store's disk; gone when the writer closes."""
        return self._work / SCRATCH

    def checkpoints(self, tally: Tally) -> Checkpoints:
        """What is kept of the run for the case that it is killed."""
        return Checkpoints(self._work, self._resume_key, tally)

    def user(self, user: bytes) -> None:
        """Begin a user; ids must come in increasing order of bytes."""
        self.body.user(user)

    def write(
        self,
        split: Split,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        *,
        targets: NDArray[np.uint8] | None = None,
        records: int = 0,
    ) -> None:
        """Append examples to ``split`` of the user begun last; see `Body.write`."""
        self.body.write(split, tokens, lengths, targets=targets, records=records)

    def finish(
        self,
        *,
        source: dict[str, Any],
        fractions: tuple[float, float],
        tally: Tally,
        ownership: dict[str, Any] | None = None,
    ) -> StoreMeta:
        """Write the index, sync, and put the store in its place.

        Args:
            source: what the source says of itself.
            fractions: of held-out users and held-out examples.
            tally: its books must balance.
            ownership: see `StoreMeta`; None: each record has one user.
        """
        tally.balance()
        self.body.close()
        index = self.body.index()
        generation = Path(layout.INDEX) / layout.segment_name(0)
        index.write(self._work / generation)
        write_bytes(self._work / layout.TOKENIZER, self._tokenizer.content)
        meta = StoreMeta(
            format_version=layout.FORMAT_VERSION,
            store_id=secrets.token_hex(16),
            seq_len=self._seq_len,
            vocab_size=self._tokenizer.vocab_size,
            token_dtype=self._tokenizer.dtype,
            end_of_text_id=self._tokenizer.end_of_text_id,
            tokenizer_sha256=self._tokenizer.sha256,
            content_sha256=index.content_hash(seq_len=self._seq_len, loss_mask=self.loss_mask),
            source=source,
            held_out_users=fractions[0],
            held_out_examples=fractions[1],
            drops=dict(sorted(tally.drops.items())),
            example_drops=dict(sorted(tally.example_drops.items())),
            totals=totals_of(self.body, index, tally),
            generation=0,
            segments=self.body.segments,
            loss_mask=self.loss_mask,
            ownership=ownership or SINGLE_OWNER,
            appended=[],
            files={
                **checksums(self._work, self.body.new_files()),
                **checksums(self._work, index_files(generation)),
                **checksums(self._work, iter([Path(layout.TOKENIZER)])),
            },
        )
        write_bytes(self._work / layout.META, meta_text(meta))
        self._publish()
        return meta

    def _publish(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        for folder, _, _ in os.walk(self._work):
            sync(Path(folder))
        require_free(self._out, overwrite=self._overwrite)
        if not self._out.exists():
            self._work.rename(self._out)
            sync(self._out.parent)
            return
        old = self._out.with_name(f".{self._out.name}.old-{secrets.token_hex(4)}")
        held = os.open(self._out, os.O_RDONLY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # until an append to the old store is done
            _keep_ledger(self._out, self._work)
            self._out.rename(old)
        finally:
            os.close(held)
        self._work.rename(self._out)
        sync(self._out.parent)
        _keep_ledger(old, self._out)
        shutil.rmtree(old, ignore_errors=True)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.body.abandon()
        shutil.rmtree(self._work, ignore_errors=True)
        os.close(self._lock)


SINGLE_OWNER = {"rule": "single", "adjacency": "add-or-remove"}


def index_files(generation: Path) -> Iterator[Path]:
    """The files of an index, by their paths in the store."""
    return iter([generation / name for name in (layout.USERS, layout.USER_IDS, layout.SPANS)])


def meta_text(meta: StoreMeta) -> bytes:
    """The content of meta.json."""
    return (json.dumps(meta.to_dict(), indent=2, ensure_ascii=False) + "\n").encode()


def totals_of(
    body: Body, index: Index, tally: Tally, old: dict[str, Any] | None = None
) -> dict[str, Any]:
    """`StoreMeta.totals`: what was there and what ``body`` and ``tally`` bring."""
    before = old or {"records_read": 0, "records_stored": 0, "splits": {}}
    nothing = {"examples": 0, "tokens": 0}
    splits = {}
    for split in Split:
        was = before["splits"].get(str(split), nothing)
        splits[str(split)] = {
            "users": index.users_of(split),
            "examples": was["examples"] + body.examples[split],
            "tokens": was["tokens"] + body.tokens[split],
        }
    return {
        "records_read": before["records_read"] + tally.records_read,
        "records_stored": before["records_stored"] + tally.records_stored,
        "users": len(index.ids),
        "near_colliding_users": near_colliding(index.ids),
        "examples": sum(part["examples"] for part in splits.values()),
        "tokens": sum(part["tokens"] for part in splits.values()),
        "splits": splits,
    }


def require_free(out: Path, *, overwrite: bool) -> None:
    """`UseError` if a store may not be put at ``out``."""
    if not out.exists() and not out.is_symlink():
        return
    if not is_store(out):
        raise UseError(
            f"{out} exists and is not a user store, so it is left alone",
            hint="choose another place for the store",
        )
    if not overwrite:
        raise UseError(
            f"a store exists at {out}",
            hint="choose another place, or give --overwrite to replace it",
        )


def _keep_ledger(old: Path, new: Path) -> None:
    """Let a new store share the old one's privacy ledger, the same file on disk.

    The people whose data it is stay charged; a run that is writing to it loses nothing.
    """
    if (old / layout.LEDGER).exists() and not (new / layout.LEDGER).exists():
        (new / layout.LEDGER).hardlink_to(old / layout.LEDGER)
        sync(new)


def _recover(out: Path) -> None:
    """Bring back an old store that a killed process had moved aside and not yet replaced."""
    for old in out.parent.glob(f".{out.name}.old-*"):
        if not out.exists():
            old.rename(out)
        else:
            _keep_ledger(old, out)
            shutil.rmtree(old, ignore_errors=True)


def _abandoned(out: Path, key: str | None) -> tuple[Path, int] | None:
    """Remove what killed processes left, but for one folder of a run of ``key``: it, locked."""
    found = None
    for folder in out.parent.glob(f".{out.name}.partial-*"):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use by a living process
            os.close(lock)
            continue
        state = read_state(folder, key) if key is not None and found is None else None
        if state is not None:
            clear(folder, state)
            found = folder, lock
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    return found
