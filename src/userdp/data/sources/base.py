"""What a source of records is, which files a PATH stands for, and opening them."""

from __future__ import annotations

import glob
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.errors import UseError, kind_of

_GZIP_MAGIC = b"\x1f\x8b"
_LOOK = 4096
_READ_ERRORS = (OSError, EOFError, zlib.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputOptions:
    """How the input is read; each source reads the options that concern it.

    Args:
        user: the field that names a record's user; a list where several own it.
        text: the field that holds a record's text.
        date: the field that holds a record's date (ISO 8601, or seconds since 1970).
        held_out_from: hold out the records of this day (ISO date, UTC) and later.
        url: web text: the field whose registered domain is the user.
        messages: conversations: the field of the list of messages.
        prompt: conversations: the field of the prompt.
        completion: conversations: the field of the answer.
        dataset_split: Hugging Face data sets: which split.
        receivers: mail: one record per receiver (To, Cc, Bcc).
        drop_forwarded: mail: drop forwarded mail.
        drop_repeats: mail: drop mail in which a 20-gram of words repeats.
        csv_escape: CSV: a backslash escapes the character after it, quotation marks above all.
        csv_no_quotes: CSV: quotation marks are ordinary characters, and enclose nothing.
        max_users: at most this many users, chosen by hash; for public sources (docstrings) alone,
            since the choice compares users with each other.
    """

    user: str = "user"
    text: str = "text"
    date: str | None = None
    held_out_from: str | None = None
    url: str = "url"
    messages: str = "messages"
    prompt: str = "prompt"
    completion: str = "completion"
    dataset_split: str = "train"
    receivers: bool = False
    drop_forwarded: bool = False
    drop_repeats: bool = False
    csv_escape: bool = False
    csv_no_quotes: bool = False
    max_users: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions(InputOptions):
    """With what a conversation is written by; comes from the tokenizer's folder.

    Args:
        chat_template: Jinja text of a tokenizer's chat template; None: the default of
            `userdp.data.sources.conversations`.
        special_tokens: what the template writes for ``bos_token``, ``eos_token`` and so on.
    """

    chat_template: str | None = None
    special_tokens: tuple[tuple[str, str], ...] = ()


class Source:
    """A stream of records; as it stands: of private text, one owner each, every token a target.

    A source of its own has a ``kind``, and `entries` or `records`.

    Attributes:
        kind: its name in the registry and on the command line.
        public: whether the text is public, so that nobody's privacy is at stake.
        several_owners: whether records may name `Record.owners`, to be settled by `ownership`;
            then a record that cannot be used for its text is yielded with ``unusable`` set.
        loss_mask: whether records have `Record.pieces`, so that the store has a loss mask.
    """

    __slots__ = ()
    kind: str
    public = False
    several_owners: bool = False
    loss_mask: bool = False

    @property
    def size(self) -> int | None:
        """Of the whole in the units that `entries` reports; None if unknown."""
        return None

    @property
    def files(self) -> Sequence[Path]:
        """What is read, where it is told from what else lies in a folder that was named."""
        return ()

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """Each entry of the source: its record, or why there is none.

        Raises:
            UseError: the input as a whole cannot be used.
        """
        raise NotImplementedError

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """Yield each usable record; count every record as read, and the others as dropped."""
        for entry in self.entries(progress):
            tally.read()
            if isinstance(entry, Drop):
                tally.drop(entry)
            else:
                yield entry

    def facts(self) -> dict[str, Any]:
        """What the store should say of its origin; no text, no user ids, no paths."""
        return {}

    def signature(self) -> str | None:
        """What all records depend on (names, sizes and times of files, options), if it can tell."""
        return None


class FileSource(Source):
    """A source that reads the files ``paths`` one after another."""

    __slots__ = ()
    paths: tuple[Path, ...]

    @property
    def files(self) -> Sequence[Path]:
        """All of them."""
        return self.paths

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return sum(path.stat().st_size for path in self.paths)

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes."""
        return {"files": len(self.paths), "bytes": self.size}

    def each_file(self, progress: Progress) -> Iterator[tuple[Path, int]]:
        """Each file with the bytes of those before it; ``progress`` hears when one is done."""
        done = 0
        for path in self.paths:
            yield path, done
            done += path.stat().st_size
            progress.at(done)


def expand(paths: Sequence[str], *, suffixes: tuple[str, ...], what: str) -> tuple[Path, ...]:
    """The files that ``paths`` stand for, in their order.

    Args:
        paths: files, folders (their files and those of folders within, in the order of names) or
            glob patterns.
        suffixes: what the name of a file in a folder must end in, in lower case or capitals.
        what: the kind in words, for messages.

    Raises:
        UseError: nothing is named, nothing is there, or a folder holds no such file.
    """
    if not paths:
        raise UseError(f"no input: {what} need a file", hint="name one or more PATHs")
    files: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            matches = [one for one in files_in(path) if is_named(one, suffixes)]
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


def files_in(folder: Path) -> list[Path]:
    """All files below a folder by name, without hidden ones and those that editors leave."""
    return sorted(
        entry
        for entry in folder.rglob("*")
        if not any(part.startswith((".", "~$")) for part in entry.relative_to(folder).parts)
        if entry.is_file()
    )


def is_named(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends in one of ``suffixes``, in lower case or capitals."""
    return path.name.lower().endswith(suffixes)


def holds(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file, or one below a folder, is named so."""
    files = files_in(path) if path.is_dir() else [path]
    return any(is_named(file, suffixes) for file in files)


def matching(pattern: str) -> list[str]:
    """What a glob pattern matches, in the order of the names; nothing for a plain path."""
    if not glob.has_magic(pattern):
        return []
    return sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 (patterns may be absolute)


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
        with path.open("rb", buffering=0) as raw, _unzipped(raw) as content:
            if b"\0" in content.peek(_LOOK)[:_LOOK]:
                raise UseError(
                    f"{path} is a binary file, not {what}", hint="expected text, plain or gzip"
                )
            yield content, raw.tell  # without a buffer, so that its place is the file's own
    except _READ_ERRORS as error:
        raise UseError(
            f"{path} cannot be read to its end: {words(error)}; the records after that "
            "would be missing without a count",
            hint="copy the file again, or cut it where it is whole",
        ) from error


def content_of(file: Path, paths: Sequence[Path]) -> bytes:
    """The bytes of one of the files that were found in ``paths``.

    Raises:
        UseError: it cannot be read. Of a file in a folder the folder is named: the operator chose
            that name, and the file's may be a person's.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        place = next((path for path in paths if path in file.parents), file)
        told = str(file) if place == file else f"a file in {place}"
        raise UseError(
            f"{told} cannot be read: {kind_of(error)}; its records would be missing without a "
            "count",
            hint=f"find it: find {place} -type f ! -readable",
        ) from error


def beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip; nothing if it cannot be read."""
    try:
        with path.open("rb", buffering=0) as raw, _unzipped(raw) as content:
            return content.peek(_LOOK)[:_LOOK]
    except _READ_ERRORS:
        return b""


def is_gzip(path: Path) -> bool:
    """Whether a file says of itself that it is gzip; one that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    except OSError:
        return False


def _unzipped(raw: io.FileIO) -> io.BufferedReader:
    """``raw`` from its beginning, decompressed if it is gzip; closing it leaves ``raw`` open."""
    zipped = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    content: Any = io.FileIO(raw.fileno(), closefd=False)
    if zipped:
        content = gzip.GzipFile(fileobj=raw, mode="rb")
    return io.BufferedReader(content, 2**20)


def words(error: BaseException) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, EOFError):
        return "the gzip stream is truncated"
    if isinstance(error, zlib.error | gzip.BadGzipFile):
        return "the gzip stream is damaged"
    return getattr(error, "strerror", None) or str(error)
