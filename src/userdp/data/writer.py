"""Write a user store: all of it, or nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.hashing import HASH_BYTES, user_hash
from userdp.data.meta import StoreMeta, is_store
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import UseError


class StoreWriter:
    """Writes users one after another, in order of their ids' bytes.

    A context manager. The store appears at ``out`` when `finish` returns; leaving the block
    before that removes everything. What a killed process left behind (a hidden folder beside
    ``out``) goes when the next writer for ``out`` starts.

    Args:
        out: the store's place.
        tokenizer: is copied into the store.
        seq_len: most tokens of an example.
        overwrite: replace the store that lies at ``out``; its privacy ledger is carried over,
            since the people stay charged for what was released.
        segment_tokens: a new segment begins once one holds this many.

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
    ) -> None:
        self._out = out.absolute()
        _recover(self._out)
        require_free(self._out, overwrite=overwrite)
        self._overwrite = overwrite
        self._tokenizer = tokenizer
        self._seq_len = seq_len
        self._segment_tokens = segment_tokens
        self._dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
        self._ids: list[bytes] = []
        self._spans = _Spans()
        self._hash = ContentHash()
        self._totals = {split: np.zeros(3, dtype=np.int64) for split in Split}
        self._segment: _Segment | None = None
        self._segments = 0
        self._out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(self._out)
        self._work = self._out.with_name(f".{self._out.name}.partial-{secrets.token_hex(4)}")
        self._work.mkdir(mode=0o700)
        self._lock = os.open(self._work, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self._work / layout.SEGMENTS).mkdir()

    @property
    def scratch(self) -> Path:
        """A folder for working files, on the store's disk; gone when the writer closes."""
        return self._work / "scratch"

    def user(self, user: bytes) -> int:
        """Begin a user; ids must come in increasing order of bytes. Returns the user's row."""
        assert not self._ids or self._ids[-1] < user, "users come in order of their ids' bytes"
        self._ids.append(user)
        return len(self._ids) - 1

    def write(self, split: Split, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append examples to ``split`` of the user begun last.

        Args:
            split: one call per split and user is best: each may cost a span.
            tokens: flat, ids below the vocabulary size.
            lengths: int64 (examples,), of each example; their sum is ``len(tokens)``.
        """
        if len(lengths) == 0:
            return
        user = len(self._ids) - 1
        if self._segment is not None and self._segment.tokens >= self._segment_tokens:
            self._segment.close()
            self._segment = None
        if self._segment is None:
            folder = self._work / layout.SEGMENTS / layout.segment_name(self._segments)
            self._segment = _Segment(folder, self._dtype)
            self._segments += 1
        new = self._spans.add(split, user, self._segments - 1, self._segment.examples, len(lengths))
        self._segment.append(tokens, lengths)
        self._hash.examples(tokens, lengths)
        self._totals[split] += (new, len(lengths), len(tokens))

    def finish(
        self, *, source: dict[str, Any], fractions: tuple[float, float], tally: Tally
    ) -> StoreMeta:
        """Write the index, sync, and put the store in its place.

        Args:
            source: what the source says of itself.
            fractions: of held-out users and held-out examples.
            tally: its books must balance.
        """
        tally.balance()
        if self._segment is not None:
            self._segment.close()
        hashes = [user_hash(user) for user in self._ids]
        _write_arrow(self._work / layout.USERS, {"hash": pa.array(hashes, pa.binary(HASH_BYTES))})
        _write_arrow(
            self._work / layout.USER_IDS, {"id": pa.array(self._ids, pa.large_binary())}, 0o600
        )
        spans = self._spans.columns()
        _write_arrow(self._work / layout.SPANS, {k: pa.array(v) for k, v in spans.items()})
        _write_bytes(self._work / layout.TOKENIZER, self._tokenizer.content)
        meta = StoreMeta(
            format_version=layout.FORMAT_VERSION,
            store_id=secrets.token_hex(16),
            seq_len=self._seq_len,
            vocab_size=self._tokenizer.vocab_size,
            token_dtype=self._tokenizer.dtype,
            end_of_text_id=self._tokenizer.end_of_text_id,
            tokenizer_sha256=self._tokenizer.sha256,
            content_sha256=self._hash.hexdigest(
                self._ids, spans["user"], spans["split"], spans["length"], self._seq_len
            ),
            source=source,
            held_out_users=fractions[0],
            held_out_examples=fractions[1],
            drops=dict(sorted(tally.drops.items())),
            example_drops=dict(sorted(tally.example_drops.items())),
            totals=self._all_totals(tally),
        )
        text = json.dumps(meta.to_dict(), indent=2, ensure_ascii=False) + "\n"
        _write_bytes(self._work / layout.META, text.encode())
        self._publish()
        return meta

    def _all_totals(self, tally: Tally) -> dict[str, Any]:
        _, examples, tokens = sum(self._totals.values(), np.zeros(3, dtype=np.int64)).tolist()
        names = ("users", "examples", "tokens")
        return {
            "records_read": tally.records_read,
            "records_stored": tally.records_stored,
            "users": len(self._ids),
            "examples": examples,
            "tokens": tokens,
            "splits": {
                str(split): dict(zip(names, totals.tolist(), strict=True))
                for split, totals in self._totals.items()
            },
        }

    def _publish(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        for folder, _, _ in os.walk(self._work):
            _sync_folder(Path(folder))
        require_free(self._out, overwrite=self._overwrite)
        if not self._out.exists():
            self._work.rename(self._out)
            _sync_folder(self._out.parent)
            return
        old = self._out.with_name(f".{self._out.name}.old-{secrets.token_hex(4)}")
        _keep_ledger(self._out, self._work)
        self._out.rename(old)
        self._work.rename(self._out)
        _sync_folder(self._out.parent)
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
        if self._segment is not None:
            self._segment.abandon()
        shutil.rmtree(self._work, ignore_errors=True)
        os.close(self._lock)


class ContentHash:
    """The logical hash of a store: independent of segments, batches and files.

    SHA-256 over the digests of three streams, each in the order of users, and per user training
    examples before held-out ones: ids with the number of examples per split; example lengths;
    tokens as 32-bit numbers.
    """

    def __init__(self) -> None:
        self._lengths = hashlib.sha256()
        self._tokens = hashlib.sha256()

    def examples(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """The next examples, in order."""
        self._lengths.update(lengths.astype("<i8").tobytes())
        self._tokens.update(tokens.astype("<u4").tobytes())

    def hexdigest(
        self,
        ids: list[bytes],
        span_user: NDArray[np.int64],
        span_split: NDArray[np.uint8],
        span_length: NDArray[np.int64],
        seq_len: int,
    ) -> str:
        """The hash, given the ids and the span index."""
        per_split = np.zeros((len(ids), len(layout.SPLIT_CODES)), dtype="<i8")
        np.add.at(per_split, (span_user, span_split), span_length)
        users = hashlib.sha256()
        for user, counts in zip(ids, per_split, strict=True):
            users.update(len(user).to_bytes(8, "little") + user + counts.tobytes())
        whole = hashlib.sha256(f"userdp content {seq_len}".encode())
        for part in (users, self._lengths, self._tokens):
            whole.update(part.digest())
        return whole.hexdigest()


class _Spans:
    """The span index in the making: rows (split, user, segment, start, length)."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._last: dict[Split, list[int]] = {}

    def add(self, split: Split, user: int, segment: int, start: int, length: int) -> bool:
        """Add a span or prolong the last; True if the user is new to the split."""
        last = self._last.get(split)
        if last is not None and last[1:3] == [user, segment] and last[3] + last[4] == start:
            last[4] += length
            return False
        row = [layout.SPLIT_CODES[split], user, segment, start, length]
        self._rows.append(row)
        self._last[split] = row
        return last is None or last[1] != user

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns of spans.arrow, ordered by split and user."""
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 5)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        kinds = {"split": "u1", "user": "i8", "segment": "i4", "start": "i8", "length": "i8"}
        return {name: rows[:, i].astype(kind) for i, (name, kind) in enumerate(kinds.items())}


class _Segment:
    """One pair of token and offset files in the making."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        folder.mkdir()
        self._folder = folder
        self._dtype = dtype
        self._raw: dict[str, IO[bytes]] = {
            name: (folder / f"{name}.raw").open("wb", buffering=2**20)
            for name in (layout.TOKENS, layout.OFFSETS)
        }
        self.tokens = 0
        self.examples = 0
        self._raw[layout.OFFSETS].write(np.zeros(1, dtype="<i8").tobytes())

    def append(self, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        ends = self.tokens + np.cumsum(lengths)
        assert ends[-1] == self.tokens + len(tokens), "lengths add up to the tokens"
        self._raw[layout.TOKENS].write(tokens.astype(self._dtype, copy=False).tobytes())
        self._raw[layout.OFFSETS].write(ends.astype("<i8").tobytes())
        self.tokens += len(tokens)
        self.examples += len(lengths)

    def close(self) -> None:
        """Turn the raw files into Arrow files, through a memory map: no array is held."""
        kinds = {layout.TOKENS: ("token", self._dtype), layout.OFFSETS: ("offset", np.dtype("<i8"))}
        for name, (column, dtype) in kinds.items():
            file = self._raw[name]
            file.close()
            raw = Path(file.name)
            values = np.memmap(raw, dtype=dtype, mode="r")
            _write_arrow(self._folder / name, {column: pa.array(np.asarray(values))})
            del values
            raw.unlink()

    def abandon(self) -> None:
        """Let go of the files without writing what is in their buffers."""
        for file in self._raw.values():
            try:
                file.close()
            except OSError:  # the disk is full: that is why we are here
                continue


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
        _sync_folder(new)


def _recover(out: Path) -> None:
    """Bring back an old store that a killed process had moved aside and not yet replaced."""
    for old in out.parent.glob(f".{out.name}.old-*"):
        if not out.exists():
            old.rename(out)
        else:
            _keep_ledger(old, out)
            shutil.rmtree(old, ignore_errors=True)


def _remove_abandoned(out: Path) -> None:
    for folder in out.parent.glob(f".{out.name}.partial-*"):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use by a living process
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _write_arrow(path: Path, columns: dict[str, pa.Array], mode: int = 0o644) -> None:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as sink:
            sink.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def _write_bytes(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
