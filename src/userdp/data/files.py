"""Files and folders of a store: tables of Arrow over a memory map, the lock, and what is left over.

All tables are written once and synced; nothing counts until ``meta.json`` names it.

``places.jsonl`` (0600) says where else the store's text left something: the folders of its runs,
and files of scores. It has a line for each, written when it is made, so that an erasure finds them.
What was moved since is not found: its operator names it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.codec import decode
from userdp.data import meta as layout
from userdp.data.meta import StateKind, StoreMeta, read_meta
from userdp.errors import UseError, kind_of
from userdp.files import append_line, sweep, sync
from userdp.strict_json import parse


def write_arrow(path: Path, columns: dict[str, pa.Array], mode: int = 0o644) -> None:
    """One Arrow IPC file of one record batch, synced; it must not exist yet."""
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        with pa.ipc.new_file(file, batch.schema) as sink:
            sink.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())


def read_table(path: Path, kinds: Mapping[str, pa.DataType]) -> pa.Table:
    """A file that `write_arrow` wrote, as a table over a memory map: nothing is copied.

    Guarantee: it has exactly these columns, within the bytes of the file: Arrow itself believes
    what a file says of its lengths, and reads beyond the end of one that was cut short.

    Args:
        path: of the file.
        kinds: the type of each column, in their order.

    Raises:
        OSError: there is no such file, or the disk refused.
        UseError: it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        table.validate(full=True)
    # Arrow's own errors are of the system's kinds too, but for the number that those have.
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UseError(f"{path.name} is no file of Arrow: {kind_of(error)}") from error
    if table.schema != pa.schema(kinds):
        raise UseError(f"{path.name} has other columns than a store's has")
    return table


def read_columns(path: Path, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """The columns of a file that `write_arrow` wrote, as NumPy arrays over a memory map.

    Args:
        path: of the file.
        kinds: NumPy's name for the type of each column.

    Raises:
        OSError: there is no such file.
        UseError: it is damaged.
    """
    types = {name: pa.from_numpy_dtype(np.dtype(kind)) for name, kind in kinds.items()}
    table = read_table(path, types)
    return {name: _mapped(table.column(name), kind) for name, kind in kinds.items()}


def _mapped(column: pa.ChunkedArray, kind: str) -> NDArray[Any]:
    """The column's one piece, where it lies: pyarrow's `to_numpy` would import pandas (2 s)."""
    if not len(column):
        return np.empty(0, dtype=kind)
    piece = column.chunk(0)
    begin, end = piece.offset, piece.offset + len(piece)
    return np.frombuffer(piece.buffers()[1], dtype=kind)[begin:end]


def index_folder(store: Path, meta: StoreMeta) -> Path:
    """Where the index of a store's generation lies."""
    return store / layout.INDEX / layout.segment_name(meta.generation)


def records_folder(place: Path) -> Path:
    """Where `prepare` keeps sorted records for the store at ``place`` until it is written."""
    return place.with_name(f".{place.name}.records")


def clear(folder: Path, meta: StoreMeta) -> None:
    """Remove from a store's folder what ``meta`` does not name; call it under the lock."""
    sweep(folder)
    for entry in _unnamed(folder, meta):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def finish_erasure(folder: Path, meta: StoreMeta) -> None:
    """Delete what an erasure that was killed left in a store's folder.

    Nothing where another process holds the store, or the disk refuses: the person is out of the
    index in any case.
    """
    if meta.state.kind is StateKind.ERASED and _unnamed(folder, meta):
        with suppress(UseError, OSError), locked(folder):
            clear(folder, read_meta(folder))


def _unnamed(folder: Path, meta: StoreMeta) -> list[Path]:
    segments = folder / layout.SEGMENTS
    named = {segments / meta.segment_folder(number) for number in range(meta.segments)}
    named |= {index_folder(folder, meta), folder / meta.tokenizer}
    there = (segments.iterdir(), (folder / layout.INDEX).iterdir(), folder.glob("tokenizer.json*"))
    return [entry for entry in chain.from_iterable(there) if entry not in named]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a store's folder, or of its working files; a kill lets go of it too.

    Raises:
        UseError: another process has it.
    """
    lock = require_lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def require_lock(folder: Path) -> int:
    """The descriptor that holds a folder's lock until it is closed; see `locked`."""
    lock = lock_of(folder)
    if lock is None:
        raise UseError(
            f"another process appends to the store at {folder}, or erases somebody from it",
            hint="wait until it is done",
        )
    return lock


def lock_of(folder: Path) -> int | None:
    """The descriptor that holds a folder's lock until it is closed; None: somebody else has it."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


class Place(StrEnum):
    """What lies at a place."""

    RUN = "run"
    SCORES = "scores"


def remember(store: Path, place: Place, path: Path) -> None:
    """Note that something made of the store's text lies at ``path``; on the disk once it is made.

    Args:
        store: the store's folder.
        place: what it is.
        path: where it will lie.
    """
    known = str(path.resolve())
    if known not in places_of(store, place):
        append_line(store / layout.PLACES, {"kind": str(place), "path": known})
        sync(store / layout.PLACES)


def places_of(store: Path, place: Place) -> list[str]:
    """The places of a kind that were noted, whether or not anything is there now.

    Raises:
        UseError: a line is damaged.
    """
    try:
        lines = (store / layout.PLACES).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found: list[str] = []
    for line in lines:
        kind, path = _noted(store, line)
        if kind == place and path not in found:
            found.append(path)
    return found


def _noted(store: Path, line: bytes) -> tuple[str, str]:
    """Kind and path of what a line notes; an empty kind where it notes nothing."""
    try:
        values = decode(dict[str, str], parse(line), what="a line")
        return values["kind"], values["path"]
    except (ValueError, KeyError) as error:
        if not line.endswith(b"}"):  # a crash cut it short, before anything was made there
            return "", ""
        raise UseError(
            f"{store / layout.PLACES} is damaged: an erasure would not find all that was made of "
            "a person's text",
            hint="put back the file that was there",
        ) from error
