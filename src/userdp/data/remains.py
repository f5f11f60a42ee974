"""Look for a person's traces in files, whatever they are compressed by."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
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
_RATIO, _LEAST_UNPACKED = 1000, 2**30
"""Bytes that an archive may unpack to: a thousand for each of its own, as gzip's best is, and 1 GiB
beside. A few kilobytes can unpack to more than any disk holds."""
_MOST_HELD = 2**28
"""Bytes of an archive in an archive."""
_ROWS = 2**14
"""Rows of a Parquet file that are held at once."""
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
        unread: files, and folders, that could not be read, so that nothing is said of them.
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
    found, unread, read = list[Path](), list[Path](), 0
    paths = sorted({file for place in places for file in _files(place, unread)})
    shown.stage("scanning", len(paths))
    for number, path in enumerate(paths, start=1):
        try:
            read += path.stat().st_size
            hit = _holds(os.fsencode(path), patterns)
            with path.open("rb") as file:
                hit = hit or _in_stream(file, patterns, deep=0)
            if hit:
                found.append(path)
        except FileNotFoundError:  # it went meanwhile, and what is not there holds nothing
            pass
        except Exception:  # a damaged archive makes its reader raise anything: zlib, struct, Arrow
            # A file that was not read to its end is told as such, and a scan with one is not clean.
            unread.append(path)
        shown.at(number)
    return Scan(files=len(paths), bytes=read, found=tuple(found), unread=tuple(unread))


def _files(place: Path, unread: list[Path]) -> Iterator[Path]:
    """The files at a place; folders that may not be looked into are added to ``unread``."""
    if os.path.isfile(place):  # noqa: PTH113  (`Path.is_file` raises if the folder above is closed)
        yield place
        return

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            unread.append(Path(error.filename))

    for folder, _, names in os.walk(place, onerror=refused):
        yield from (path for path in (Path(folder, name) for name in names) if _is_file(path))


def _is_file(path: Path) -> bool:
    """Whether something is a file, and no link; what cannot be told is one that cannot be read."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _in_stream(file: IO[bytes], patterns: Patterns, *, deep: int) -> bool:
    """Whether a seekable file holds a pattern, as it is or unpacked."""
    if _raw(file, patterns):
        return True
    file.seek(0)
    head = file.read(8)
    most = _LEAST_UNPACKED + _RATIO * file.seek(0, io.SEEK_END)
    file.seek(0)
    for magic, opened in _STREAMS.items():
        if head.startswith(magic):
            return _nested(opened(file), patterns, deep, most)
    if head.startswith(_ZIP):
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            return any(_nested(archive.open(one), patterns, deep, most) for one in names)
    if head.startswith(_ARROW):
        reader = pa.ipc.open_file(pa.PythonFile(file, mode="r"))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return any(_in_batch(batch, patterns) for batch in batches)
    if head.startswith(_PARQUET):
        parquet = pyarrow.parquet.ParquetFile(file)
        return any(_in_batch(batch, patterns) for batch in parquet.iter_batches(_ROWS))
    return False


def _nested(stream: Any, patterns: Patterns, deep: int, most: int) -> bool:
    """Whether what an archive unpacks to holds a pattern; what is an archive again, in memory."""
    if deep == _DEEPEST:
        raise ValueError("an archive in an archive in an archive")
    unpacked = _Unpacked(stream, most)
    head = unpacked.read(8)
    if not head.startswith((*_STREAMS, _ZIP, _ARROW, _PARQUET)):
        return _raw(unpacked, patterns, head)
    whole = io.BytesIO(head)
    whole.seek(0, io.SEEK_END)
    while block := unpacked.read(_AT_ONCE):
        whole.write(block)
        if whole.tell() > _MOST_HELD:
            raise ValueError("an archive in an archive is too large to be held")
    whole.seek(0)
    return _in_stream(whole, patterns, deep=deep + 1)


class _Unpacked:
    """What an archive unpacks to: at most so many bytes, since a few may unpack to any number."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._left = stream, most

    def read(self, size: int) -> bytes:
        """As of a file."""
        data: bytes = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("an archive unpacks to far more than it is long")
        return data


def _raw(file: IO[bytes] | _Unpacked, patterns: Patterns, begin: bytes = b"") -> bool:
    """Whether the bytes themselves hold a pattern; blocks overlap by the longest.

    Args:
        file: is read from where it stands.
        patterns: to look for.
        begin: was read of it before.
    """
    if _holds(begin, patterns):
        return True
    kept = begin
    while block := file.read(_AT_ONCE):
        data = kept + block
        if _holds(data, patterns):
            return True
        kept = data[-patterns.longest :]
    return False


def _in_batch(batch: pa.RecordBatch, patterns: Patterns) -> bool:
    """Whether a column holds a pattern, wherever its values are kept.

    Of a column with a dictionary the words are no buffer of its own: so each buffer is looked at
    that Arrow would write, which are all.
    """
    batch.validate(full=True)  # Arrow believes the lengths in a file, and reads beyond its end
    looked = _Looked(patterns)
    with pa.ipc.new_stream(pa.PythonFile(looked, mode="w"), batch.schema) as stream:
        stream.write_batch(batch)
    return looked.found


class _Looked(io.RawIOBase):
    """A file that keeps nothing: what is written to it is looked at, buffer by buffer."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns, self.found = patterns, False

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """As of a file."""
        self.found = self.found or _holds(data, self._patterns)
        return len(data)


def _holds(data: Any, patterns: Patterns) -> bool:
    return next(patterns.find(data), None) is not None
