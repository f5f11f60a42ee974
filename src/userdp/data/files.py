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
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.core.codec import decode
from userdp.core.errors import UseError, kind_of
from userdp.core.files import append_line, sweep, sync
from userdp.core.strict_json import parse
from userdp.data import meta as layout
from userdp.data.meta import StateKind, StoreMeta, read_meta


def write_table(
    sink: IO[bytes], columns: Mapping[str, pa.Array], facts: Mapping[bytes, bytes] | None = None
) -> None:
    """One Arrow IPC file of one record batch; ``facts`` are about all of it."""
    batch = pa.RecordBatch.from_pydict(columns, metadata=facts)
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)


def write_arrow(path: Path, columns: Mapping[str, pa.Array], mode: int = 0o644) -> None:
    """`write_table` into a new file, synced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(path, flags, mode), "wb") as file:
        write_table(file, columns)
        file.flush()
        os.fsync(file.fileno())


def read_arrow(path: Path, schema: pa.Schema, *, whole: bool = True) -> pa.RecordBatch:
    """What `write_table` wrote, over a memory map: nothing is copied.

    Guarantee: it has exactly these columns, within the bytes of the file: Arrow itself believes
    what a file says of its lengths, and reads beyond the end of one that was cut short.

    Args:
        path: of the file.
        schema: the names and types of its columns.
        whole: look at the length of every text and list too, at a cost that follows their number.

    Raises:
        OSError: there is no such file, or the disk refused.
        UseError: it is damaged.
    """
    try:
        with pa.memory_map(str(path)) as file:
            batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate(full=whole)
    # Arrow's own errors are of the system's kinds too, but for the number that those have.
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UseError(f"{path.name} is no file of Arrow: {kind_of(error)}") from error
    if batch.schema != schema:
        raise UseError(f"{path.name} has other columns than a store's has")
    return batch


def numbers(column: pa.Array) -> NDArray[Any]:
    """Arrow's numbers where they lie: its own `to_numpy` would import pandas (2 s)."""
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def pieces(
    values: NDArray[Any], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    """``values[begins[i] : begins[i] + lengths[i]]`` for each i, one after another."""
    if not len(begins):
        return values[:0]
    ends = begins + lengths
    # Neighbours, such as all of a user's examples, are copied in one go.
    first = np.flatnonzero(np.append(True, begins[1:] != ends[:-1]))
    last = np.append(first[1:], len(begins)) - 1
    places = zip(begins[first].tolist(), ends[last].tolist(), strict=True)
    return np.concatenate([values[begin:end] for begin, end in places])


def ends_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where consecutive parts begin and end: int64 (parts + 1,), from 0 on."""
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


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
    named = {folder / name for name in (meta.index, *meta.files)}
    there = [*folder.glob(f"{layout.INDEX}/*"), *folder.glob(f"{layout.SEGMENTS}/*")]
    return [entry for entry in there if entry not in named]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a store's folder, or of its working files; a kill lets go of it too.

    Raises:
        UseError: another process has it.
    """
    lock = lock_of(folder)
    if lock is None:
        raise UseError(
            f"another process appends to the store at {folder}, or erases somebody from it",
            hint="wait until it is done",
        )
    try:
        yield
    finally:
        os.close(lock)


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
    file = store / layout.PLACES
    lines = file.read_bytes().splitlines() if file.exists() else []
    if lines and not lines[-1].endswith(b"}"):
        lines.pop()  # a crash cut it short, before anything was made there
    try:
        noted = [decode(dict[str, str], parse(line), what="a line") for line in lines]
        return list(dict.fromkeys(one["path"] for one in noted if one["kind"] == place))
    except (ValueError, KeyError) as error:
        raise UseError(
            f"{file} is damaged: an erasure would not find all that was made of a person's text",
            hint="put back the file that was there",
        ) from error
