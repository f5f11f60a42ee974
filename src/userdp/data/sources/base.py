"""What a source of records is, which files a PATH stands for, and opening them."""

from __future__ import annotations

import glob
import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa

from userdp.core.errors import UseError, kind_of
from userdp.data.progress import Progress
from userdp.data.records import Drop, Record, Tally

GZIP_MAGIC = b"\x1f\x8b"
_LOOK = 4096
_READ_ERRORS = (
    OSError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException,
)  # fmt: skip
Entry = Record | Drop
At = Callable[[int], None]
"""Is told how many bytes of a file are read."""
T = TypeVar("T")


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

    A source of its own has a ``kind``, and `entries`.

    Attributes:
        kind: its name in the registry and on the command line.
        public: whether the text is public, so that nobody's privacy is at stake.
        several_owners: whether records may name `Record.owners`, to be settled by `ownership`.
        loss_mask: whether records have `Record.pieces`, so that the store has a loss mask.
    """

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

    def entries(self, progress: Progress) -> Iterator[Entry]:
        """Each entry of the source: its record, or why there is none.

        Raises:
            UseError: the input as a whole cannot be used.
        """
        raise NotImplementedError

    def records(
        self, tally: Tally, progress: Progress, *, all_owned: bool = False
    ) -> Iterator[Record]:
        """Yield each usable record; count every entry as read, and the others as dropped.

        Args:
            tally: of this source only.
            progress: is told how far reading is.
            all_owned: yield also the records that have owners and are ``unusable``, uncounted.
        """
        yield from self.part(tally, progress, all_owned=all_owned)
        self.check(tally)

    def part(
        self, tally: Tally, progress: Progress, *, all_owned: bool = False
    ) -> Iterator[Record]:
        """What `records` gives, of a source that may be a part of one."""
        for order, entry in enumerate(self.entries(progress)):
            tally.read()
            if isinstance(entry, Drop):
                tally.drop(entry)
                continue
            if len(entry.owners) > 1:
                tally.of_several += 1
            if entry.unusable is not None and not all_owned:
                tally.drop(entry.unusable)
                continue
            if entry.written_by:
                tally.wrote(entry.written_by)
            # As `entry._replace(order=order)`, in a third of its time.
            yield Record._make((*entry[:2], order, *entry[3:]))

    def check(self, tally: Tally) -> None:
        """`UseError` if what was read shows that the source as a whole is not what was meant."""

    def facts(self) -> dict[str, Any]:
        """What the store should say of its origin; no text, no user ids, no paths."""
        return {}

    def signature(self) -> str | None:
        """What all records depend on (names, sizes and times of files, options), if it can tell."""
        return None


class FileSource(Source):
    """A source that reads the files ``paths`` one after another."""

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

    def each_file(self, read: Callable[[Path, At], Iterator[T]], progress: Progress) -> Iterator[T]:
        """What ``read`` gives of each file; `UseError` if one cannot be read to its end."""
        done = 0

        def at(read: int) -> None:
            progress.at(done + read)

        for path in self.paths:
            with told_of(path):
                yield from read(path, at)
                done += path.stat().st_size
            progress.at(done)


@dataclass(frozen=True, kw_only=True)
class DocumentSource(FileSource):
    """Records from files that a function reads.

    Args:
        kind: see `Source`.
        paths: of the files.
        options: see there.
        read: the entries of one file; it may tell how many of its bytes are read.
        several_owners: see `Source`.
        told: names of options that `facts` has, since they decide what is read.
    """

    kind: str
    paths: tuple[Path, ...]
    options: SourceOptions
    read: Callable[[Path, SourceOptions, At], Iterator[Entry]]
    several_owners: bool = False
    told: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes, and some options."""
        return {**FileSource.facts(self), **{one: getattr(self.options, one) for one in self.told}}

    def entries(self, progress: Progress) -> Iterator[Entry]:
        """The entries of all files; see `Source.entries`."""
        return self.each_file(lambda path, at: self.read(path, self.options, at), progress)


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
    files: list[Path] = []
    for name in named(paths, what):
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


def named(paths: Sequence[str], what: str) -> Sequence[str]:
    """``paths``; `UseError` if there is none."""
    if not paths:
        raise UseError(f"no input: {what} need a path", hint="name one or more PATHs")
    return paths


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
def told_of(path: Path) -> Iterator[None]:
    """`UseError` where a file cannot be read to its end: records would be missing uncounted."""
    try:
        yield
    except UseError:
        raise
    # Of a ZIP with a password the library raises a bare `RuntimeError`.
    except (*_READ_ERRORS, RuntimeError) as error:
        raise UseError(
            f"{path} cannot be read to its end: {_words(error)}; the records after that "
            "would be missing without a count",
            hint="copy the file again, or cut it where it is whole",
        ) from error


def opened(path: Path) -> tuple[IO[bytes], Callable[[], int]]:
    """The bytes of a file, decompressed if it is gzip, and how many of the file's own are read."""
    raw = path.open("rb", buffering=0)  # without a buffer, so that its place is the file's own
    zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    raw.seek(0)
    content: Any = gzip.GzipFile(fileobj=raw, mode="rb") if zipped else raw
    return io.BufferedReader(content, 2**20), raw.tell


def opened_text(path: Path, *, what: str) -> tuple[IO[bytes], Callable[[], int]]:
    """`opened`; `UseError` if the file is binary, and so not ``what``."""
    if b"\0" in beginning(path):
        raise UseError(f"{path} is a binary file, not {what}", hint="expected text, plain or gzip")
    return opened(path)


def beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip; nothing if it cannot be read."""
    try:
        content, _ = opened(path)
        with content:
            return content.read(_LOOK)
    except _READ_ERRORS:
        return b""


def _words(error: BaseException) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, EOFError):
        return "the gzip stream is truncated"
    if isinstance(error, zlib.error | gzip.BadGzipFile):
        return "the gzip stream is damaged"
    return getattr(error, "strerror", None) or kind_of(error)
