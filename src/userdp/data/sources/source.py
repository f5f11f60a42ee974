"""What a source of records is, which files a PATH stands for, and opening them."""

from __future__ import annotations

import glob
import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa

from userdp.core.errors import UseError, UserdpError, kind_of, warn
from userdp.core.stages import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.provenance import PROVENANCE

GZIP_MAGIC = b"\x1f\x8b"
_LOOK = 4096
_READ_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException)
Entry = Record | Drop
At = Callable[[int], None]
"""Is called with the number of bytes of a file that are read."""
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


@dataclass(frozen=True, kw_only=True)
class Source:
    """A stream of records, read from one place after another.

    Args:
        kind: its name on the command line.
        places: what ``read`` takes: files, folders, names, tables in memory.
        read: the entries of a place: a record each, or why there is none; it may report how many
            units of the place are read. Of a `userdp.data.sources.parsing.Table` it gives rows.
        public: whether the text is public, so that nobody's privacy is at stake.
        several_owners: whether records may name `Record.owners`, to be settled by `ownership`.
        loss_mask: whether records have `Record.pieces`, so that the store has a loss mask.
        facts: what the store says of its origin; no text, no user ids, no paths. Of files their
            number and bytes (`files_facts`).
    """

    kind: str
    places: Sequence[Any]
    read: Callable[..., Iterator[Any]]
    public: bool = False
    several_owners: bool = False
    loss_mask: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int | None:
        """Of all places, in the units that ``read`` reports; None if unknown."""
        return self.facts.get("bytes")

    def entries(self, progress: Progress) -> Iterator[Entry]:
        """Each entry of the source: its record, or why there is none.

        Raises:
            UseError: the input as a whole cannot be used.
        """
        return self.each_place(self.read, progress)

    def each_place(self, read: Callable[[Any, At], Iterator[T]], progress: Progress) -> Iterator[T]:
        """What ``read`` gives of each place; `UseError` if a file cannot be read to its end."""
        done = 0

        def at(read: int) -> None:
            progress.at(done + read)

        for place in self.places:
            with read_to_the_end(place):
                yield from read(place, at)
            done += 0 if self.size is None else place.stat().st_size
            at(0)

    def records(
        self, tally: Tally, progress: Progress, *, all_owned: bool = False
    ) -> Iterator[Record]:
        """Yield each usable record; count every entry as read, and the others as dropped.

        Args:
            tally: of this source only.
            progress: shows how far reading is.
            all_owned: yield also the records that have owners and are ``unusable``, uncounted.
        """
        for entry in self.entries(progress):
            tally.records_read += 1
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
            yield entry
        self.check(tally)

    def check(self, tally: Tally) -> None:
        """`UseError` if what was read shows that the source as a whole is not what was meant."""


def files_facts(files: Sequence[Path]) -> dict[str, Any]:
    """The number of files, and their bytes as they lie on disk."""
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def expand(paths: Sequence[str], *, suffixes: tuple[str, ...], what: str) -> tuple[Path, ...]:
    """The files that ``paths`` stand for, in their order.

    Args:
        paths: files, folders (their files and those of folders within, in the order of names) or
            glob patterns.
        suffixes: what the name of a file in a folder must end in, in lower case or capitals.
        what: the kind, for messages.

    Raises:
        UseError: nothing is there, or a folder holds no such file.
    """
    files: list[Path] = []
    for path in (path for name in paths for path in existing(name)):
        if not path.is_dir():
            files.append(path)
            continue
        there = [one for one in files_in(path) if not one.name.endswith(PROVENANCE)]
        matches = [one for one in there if is_named(one, suffixes)]
        if not matches:
            raise UseError(
                f"the folder {path} holds no files of the kind {what}",
                hint=f"files must end in one of: {', '.join(suffixes)}",
            )
        if others := len(there) - len(matches):
            warn(f"{others} of the files in {path} are not read: {what} files have other names")
        files += matches
    return tuple(files)


def existing(name: str) -> list[Path]:
    """What a path or glob pattern stands for, in the order of the names.

    Raises:
        UseError: nothing is there.
    """
    found = [name] if Path(name).exists() else []
    if not found and glob.has_magic(name):
        found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (patterns may be absolute)
    if not found:
        raise UseError(
            f"no input at {name}: nothing is there",
            hint="for installed packages give --source docstrings, for the hub --source hf",
        )
    return [Path(one) for one in found]


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


@contextmanager
def read_to_the_end(place: Any) -> Iterator[None]:
    """`UseError` where a file cannot be read to its end: records would be missing uncounted."""
    try:
        yield
    # Of a ZIP with a password the library raises a bare `RuntimeError`.
    except (*_READ_ERRORS, RuntimeError) as error:
        if not isinstance(place, Path) or isinstance(error, UserdpError):
            raise
        words = kind_of(error)
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            words = "the gzip stream is truncated or damaged"
        raise UseError(
            f"{place} cannot be read to its end: {words}; the records after that would be missing "
            "without a count",
            hint="copy the file again, or cut it where it is whole",
        ) from error


def opened(path: Path) -> tuple[IO[bytes], Callable[[], int]]:
    """The bytes of a file, decompressed if it is gzip, and how many of the file's own are read."""
    raw = path.open("rb", buffering=0)  # without a buffer, so that its place is the file's own
    zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    raw.seek(0)
    content: Any = gzip.GzipFile(fileobj=raw, mode="rb") if zipped else raw
    return io.BufferedReader(content, 2**20), raw.tell


def opened_text(path: Path) -> tuple[IO[bytes], Callable[[], int]]:
    """`opened`; `UseError` if the file is binary, and so no text."""
    if b"\0" in beginning(path):
        raise UseError(f"{path} is a binary file", hint="expected text, plain or gzip")
    return opened(path)


def beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip; nothing if it cannot be read."""
    try:
        content, _ = opened(path)
        with content:
            return content.read(_LOOK)
    except _READ_ERRORS:
        return b""
