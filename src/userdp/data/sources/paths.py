"""Which files a PATH stands for, and opening them."""

from __future__ import annotations

import glob
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from userdp.errors import UseError

_GZIP_MAGIC = b"\x1f\x8b"
_LOOK = 4096
_READ_ERRORS = (OSError, EOFError, zlib.error)


def expand(
    paths: Sequence[str], *, suffixes: tuple[str, ...], what: str, deep: bool = False
) -> tuple[Path, ...]:
    """The files that ``paths`` stand for, in their order.

    Args:
        paths: files, folders (their files in the order of names) or glob patterns.
        suffixes: what the name of a file in a folder must end in.
        what: the kind in words, for messages.
        deep: also look into folders within folders.

    Raises:
        UseError: nothing is named, nothing is there, or a folder holds no such file.
    """
    if not paths:
        raise UseError(f"no input: {what} need a file", hint="name one or more PATHs")
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            entries: Iterable[Path] = path.rglob("*") if deep else path.iterdir()
            matches = sorted(e for e in entries if e.name.endswith(suffixes) and e.is_file())
            if not matches:
                raise UseError(
                    f"the folder {path} holds no {what}",
                    hint=f"files must end in one of: {', '.join(suffixes)}",
                )
        elif path.exists():
            matches = [path]
        else:
            matches = [Path(match) for match in matching(name) if Path(match).is_file()]
            if not matches:
                raise UseError(f"no input at {name}: nothing is there")
        files.extend(matches)
    return tuple(files)


def matching(pattern: str) -> list[str]:
    """What a glob pattern matches, in the order of the names; nothing for a plain path."""
    if not glob.has_magic(pattern):
        return []
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (patterns may be absolute)


def total_size(files: Iterable[Path]) -> int:
    """Bytes of all files, as they lie on disk."""
    return sum(file.stat().st_size for file in files)


@contextmanager
def read_text(path: Path, *, what: str) -> Iterator[tuple[IO[bytes], Callable[[], int]]]:
    """The bytes of a file, decompressed if it is gzip, and how many of the file's own are read.

    Args:
        path: the file.
        what: the kind in words, for messages.

    Raises:
        UseError: here or while the block reads on: the file is no text, or cannot be read to its
            end, so that records would be missing without a count.
    """
    try:
        with path.open("rb", buffering=0) as raw:
            with _unzipped(raw) as start:
                first = start.read(_LOOK)
            if b"\0" in first:
                raise UseError(
                    f"{path} is a binary file, not {what}", hint="expected text, plain or gzip"
                )
            with _unzipped(raw) as content:
                yield content, raw.tell  # without a buffer, so that its place is the file's own
    except _READ_ERRORS as error:
        raise UseError(
            f"{path} cannot be read to its end: {words(error)}; the records after that "
            "would be missing without a count",
            hint="copy the file again, or cut it where it is whole",
        ) from error


def beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip; nothing if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as raw, _unzipped(raw) as content:
            return content.read(_LOOK)
    except _READ_ERRORS:
        return b""


def is_gzip(path: Path) -> bool:
    """Whether a file says of itself that it is gzip; one that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError:
        return False


def _unzipped(raw: IO[bytes]) -> IO[bytes]:
    """``raw`` from its beginning, decompressed if it is gzip; closing it leaves ``raw`` open."""
    raw.seek(0)
    magic = raw.read(len(_GZIP_MAGIC))
    raw.seek(0)
    if magic == _GZIP_MAGIC:
        return io.BufferedReader(gzip.GzipFile(fileobj=raw, mode="rb"), 2**20)
    return open(raw.fileno(), "rb", closefd=False, buffering=2**20)


def unreadable(file: Path, paths: Sequence[Path], error: OSError) -> UseError:
    """What to say of a file of a kind whose files are called after people.

    Args:
        file: what cannot be read.
        paths: what the operator named; a file that is none of them lies in one that is a folder.
        error: why.
    """
    if file in paths:
        return UseError(f"{file} cannot be read: {words(error)}")
    folder = next(path for path in paths if file.is_relative_to(path))
    return UseError(
        f"a file in {folder} cannot be read: {words(error)}; its name is not told, as it may be "
        "somebody's id",
        hint=f"find it: find {folder} -type f ! -readable",
    )


def words(error: BaseException) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, EOFError):
        return "the gzip stream is truncated"
    if isinstance(error, zlib.error | gzip.BadGzipFile):
        return "the gzip stream is damaged"
    return getattr(error, "strerror", None) or str(error)
