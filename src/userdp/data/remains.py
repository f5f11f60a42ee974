"""Look for a person's traces in files, whatever they are compressed by."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet

from userdp.data.patterns import Patterns
from userdp.data.progress import NoProgress, Progress

_AT_ONCE = 2**24
_DEEPEST = 3
"""Archives within archives are opened so deep; what lies deeper is named as unread."""

_ARROW, _PARQUET, _ZIP, _ZSTD, _LZ4 = (
    b"ARROW1",
    b"PAR1",
    b"PK\x03\x04",
    b"\x28\xb5\x2f\xfd",
    b"\x04\x22\x4d\x18",
)
_STREAMS: dict[bytes, Any] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    _ZSTD: lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"),
    _LZ4: lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "lz4"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What a scan read, and where it found something.

    Args:
        files: how many were read.
        bytes: of them, as they lie on the disk.
        found: files that hold a trace, or whose name does.
        unread: files that could not be read, so that nothing is said of them.
    """

    files: int
    bytes: int
    found: tuple[Path, ...]
    unread: tuple[Path, ...]

    @property
    def clean(self) -> bool:
        """Whether everything was read and nothing found."""
        return not self.found and not self.unread


def scan(places: Iterable[Path], patterns: Patterns, progress: Progress | None = None) -> Scan:
    """Read every file in ``places``, and look for ``patterns`` in it and in what it unpacks to.

    gzip, bzip2, xz, zstd, lz4 and zip are unpacked; of Arrow and Parquet files the columns are
    read, however they are encoded. A damaged archive counts as unread.
    """
    shown = progress or NoProgress()
    paths = sorted({file for place in places for file in _files(place)})
    shown.stage("scanning", len(paths))
    found, unread, read = [], [], 0
    for number, path in enumerate(paths, start=1):
        try:
            read += path.stat().st_size
            hit = _holds(str(path).encode(), patterns)
            with path.open("rb") as file:
                hit = hit or _in_stream(file, patterns, deep=0)
            if hit:
                found.append(path)
        # A damaged archive makes its reader raise anything (zlib, struct, Arrow); a file that was
        # not read to its end is told as such, and a scan with one is not clean.
        except Exception:
            if path.exists():
                unread.append(path)
        shown.at(number)
    return Scan(files=len(paths), bytes=read, found=tuple(found), unread=tuple(unread))


def _files(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (file for file in place.rglob("*") if file.is_file() and not file.is_symlink())
    elif place.is_file():
        yield place


def _in_stream(file: IO[bytes], patterns: Patterns, *, deep: int) -> bool:
    """Whether a seekable file holds a pattern, as it is or unpacked."""
    if _raw(file, patterns):
        return True
    file.seek(0)
    head = file.read(8)
    file.seek(0)
    for magic, opened in _STREAMS.items():
        if head.startswith(magic):
            return _nested(opened(file), patterns, deep)
    if head.startswith(_ZIP):
        with zipfile.ZipFile(file) as archive:
            return any(_nested(archive.open(name), patterns, deep) for name in archive.namelist())
    if head.startswith(_ARROW):
        return _in_table(pa.ipc.open_file(pa.PythonFile(file, mode="r")).read_all(), patterns)
    if head.startswith(_PARQUET):
        return _in_table(pyarrow.parquet.read_table(file), patterns)
    return False


def _nested(stream: Any, patterns: Patterns, deep: int) -> bool:
    if deep == _DEEPEST:
        raise ValueError("an archive in an archive in an archive")
    return _in_stream(io.BytesIO(stream.read()), patterns, deep=deep + 1)


def _raw(file: IO[bytes], patterns: Patterns) -> bool:
    """Whether the bytes themselves hold a pattern; blocks overlap by the longest."""
    kept = b""
    while block := file.read(_AT_ONCE):
        data = kept + block
        if _holds(data, patterns):
            return True
        kept = data[-patterns.longest :]
    return False


def _in_table(table: pa.Table, patterns: Patterns) -> bool:
    return any(
        _holds(buffer, patterns)
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None
    )


def _holds(data: Any, patterns: Patterns) -> bool:
    return next(patterns.find(data), None) is not None
