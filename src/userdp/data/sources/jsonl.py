r"""JSON Lines, plain or gzip: one object per line, with a field for the user and one for the text.

Expected input (``--user-field user --text-field text``)::

    {"user": "ana", "date": "2024-05-01", "text": "Good morning."}
    {"user": 17, "text": "A user may be a whole number."}

Several files are read one after another; a folder stands for its ``*.jsonl`` and ``*.jsonl.gz``
files in the order of their names. A user's records keep the order of the lines. Other fields are
ignored. Lines that cannot be used are dropped and counted; a file that cannot be read to its end
(truncated gzip) or is no text stops the whole.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.base import PrivateSource, SourceOptions
from userdp.errors import UseError

_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz")
_GZIP_MAGIC = b"\x1f\x8b"
_LOOK = 4096
_REPORT_EVERY = 1024
_FIELDS_SHOWN = 20


def build(paths: list[str], options: SourceOptions) -> JsonLines:
    """The source for files and folders ``paths``."""
    if not paths:
        raise UseError("no input: JSON Lines need a file", hint="name one or more PATHs")
    if options.max_users is not None:
        raise UseError(
            "max_users is for public sources alone: which users are kept would depend on who "
            "the others are",
            hint="leave --max-users out, or cut the file down by a rule on the user's own id",
        )
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if not path.exists():
            raise UseError(f"no input at {path}: nothing is there")
        found = [path]
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
            if not found:
                raise UseError(
                    f"the folder {path} holds no JSON Lines",
                    hint=f"files must end in one of: {', '.join(_SUFFIXES)}",
                )
        files.extend(found)
    return JsonLines(
        paths=tuple(files), user_field=options.user_field, text_field=options.text_field
    )


def matches(path: Path) -> bool:
    """Whether the name, or for folders a name within, says JSON Lines; or a file begins with {."""
    if path.is_dir():
        return any(file.name.endswith(_SUFFIXES) for file in path.iterdir())
    if path.name.endswith(_SUFFIXES):
        return True
    try:
        with path.open("rb", buffering=0) as raw, _unzipped(raw) as lines:
            return lines.read(64).lstrip().startswith(b"{")
    except (OSError, EOFError, zlib.error):
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonLines(PrivateSource):
    """Records from JSON Lines files; private text.

    Args:
        paths: plain or gzip files, told apart by their first bytes.
        user_field: holds a string or a whole number.
        text_field: holds a string.
    """

    paths: tuple[Path, ...]
    user_field: str = "user"
    text_field: str = "text"

    kind = "jsonl"

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return sum(path.stat().st_size for path in self.paths)

    def facts(self) -> dict[str, Any]:
        """The fields and the number of files and bytes."""
        return {
            "user_field": self.user_field,
            "text_field": self.text_field,
            "files": len(self.paths),
            "bytes": self.size,
        }

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records of all files; see `Source.records`."""
        seen = _Fields()
        order = done = 0
        for path in self.paths:
            with self._open(path) as raw, _unzipped(raw) as lines:
                for line in self._lines(path, lines):
                    tally.read()
                    record = self._parse(line, order, seen)
                    order += 1
                    if isinstance(record, Drop):
                        tally.drop(record)
                    else:
                        yield record
                    if order % _REPORT_EVERY == 0:
                        progress.at(done + raw.tell())
            done += path.stat().st_size
            progress.at(done)
        self._require_fields(tally, seen)

    def _open(self, path: Path) -> IO[bytes]:
        try:
            raw = path.open("rb", buffering=0)  # so that its place is the file's own
            with _unzipped(raw) as start:
                beginning = start.read(_LOOK)
            raw.seek(0)
        except (OSError, EOFError, zlib.error) as error:
            raise UseError(f"{path} cannot be read: {_words(error)}") from error
        if b"\0" in beginning:
            raise UseError(
                f"{path} is a binary file, not JSON Lines",
                hint="expected one JSON object per line, plain or gzip",
            )
        return raw

    def _lines(self, path: Path, lines: IO[bytes]) -> Iterator[bytes]:
        try:
            yield from lines
        except (OSError, EOFError, zlib.error) as error:
            raise UseError(
                f"{path} cannot be read to its end: {_words(error)}; the records after that "
                "would be missing without a count",
                hint="copy the file again, or cut it where it is whole",
            ) from error

    def _parse(self, line: bytes, order: int, seen: _Fields) -> Record | Drop:
        try:
            content = line.decode("utf-8-sig" if order == 0 else "utf-8")
        except UnicodeDecodeError:
            return Drop.INVALID_UTF8
        if not content.strip():
            return Drop.BLANK_LINE
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return Drop.INVALID_JSON
        if not isinstance(value, dict):
            return Drop.NOT_AN_OBJECT
        seen.add(value, self)
        user = value.get(self.user_field)
        text = value.get(self.text_field)
        if user is None:
            return Drop.NO_USER_FIELD
        if text is None:
            return Drop.NO_TEXT_FIELD
        if isinstance(user, bool) or not isinstance(user, str | int):
            return Drop.USER_NOT_TEXT
        if not isinstance(text, str):
            return Drop.NOT_TEXT
        try:
            user_bytes, text_bytes = str(user).encode(), text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as \ud83d
            return Drop.INVALID_UTF8
        if not user_bytes.strip():
            return Drop.NO_USER
        if not text.strip():
            return Drop.EMPTY_TEXT
        return Record(user_bytes, text_bytes, order)

    def _require_fields(self, tally: Tally, seen: _Fields) -> None:
        if tally.records_read and not seen.objects:
            raise UseError(
                f"none of {tally.records_read} lines is a JSON object",
                hint="expected one object per line; a JSON array must be split into lines",
            )
        for field, count in ((self.user_field, seen.users), (self.text_field, seen.texts)):
            if seen.objects and not count:
                raise UseError(
                    f"no record has the field {field!r}; fields there: {seen.shown()}",
                    hint="name the right ones with --user-field and --text-field",
                )


class _Fields:
    """Which fields were seen, for the message when none is the right one."""

    def __init__(self) -> None:
        self.objects = self.users = self.texts = 0
        self._names: dict[str, None] = {}

    def add(self, value: dict[str, Any], source: JsonLines) -> None:
        self.objects += 1
        self.users += source.user_field in value
        self.texts += source.text_field in value
        if self.objects <= _FIELDS_SHOWN:
            self._names.update(dict.fromkeys(value))

    def shown(self) -> str:
        names = list(self._names)
        more = ", …" if len(names) > _FIELDS_SHOWN else ""
        return ", ".join(repr(name[:40]) for name in names[:_FIELDS_SHOWN]) + more or "none"


def _unzipped(raw: IO[bytes]) -> IO[bytes]:
    """``raw`` from its beginning, decompressed if it is gzip; closing it leaves ``raw`` open."""
    raw.seek(0)
    magic = raw.read(len(_GZIP_MAGIC))
    raw.seek(0)
    if magic == _GZIP_MAGIC:
        return io.BufferedReader(gzip.GzipFile(fileobj=raw, mode="rb"), 2**20)
    return open(raw.fileno(), "rb", closefd=False, buffering=2**20)


def _words(error: BaseException) -> str:
    if isinstance(error, EOFError):
        return "the gzip stream is truncated"
    if isinstance(error, zlib.error | gzip.BadGzipFile):
        return "the gzip stream is damaged"
    return getattr(error, "strerror", None) or str(error)
