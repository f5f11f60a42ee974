"""What a source of records is, and what sources have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.paths import total_size


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
            `userdp.data.chat`.
        special_tokens: what the template writes for ``bos_token``, ``eos_token`` and so on.
    """

    chat_template: str | None = None
    special_tokens: tuple[tuple[str, str], ...] = ()


class Source(Protocol):
    """A stream of records.

    Attributes:
        kind: its name in the registry and on the command line.
        public: whether the text is public, so that nobody's privacy is at stake.
        several_owners: whether records may name `Record.owners`, to be settled by `ownership`;
            then a record that cannot be used for its text is yielded with ``unusable`` set.
        loss_mask: whether records have `Record.pieces`, so that the store has a loss mask.
        size: of the whole in the units that `records` reports, None if unknown.
    """

    @property
    def kind(self) -> str: ...
    @property
    def public(self) -> bool: ...
    @property
    def several_owners(self) -> bool: ...
    @property
    def loss_mask(self) -> bool: ...
    @property
    def size(self) -> int | None: ...

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """Yield each usable record; count every record as read, and the others as dropped.

        Raises:
            UseError: the input as a whole cannot be used.
        """

    def facts(self) -> dict[str, Any]:
        """What the store should say of its origin; no text, no user ids, no paths."""


@runtime_checkable
class SignedSource(Source, Protocol):
    """A source that can tell whether it is still what it was, so that a killed run can resume."""

    def signature(self) -> str | None:
        """What all records depend on: names, sizes and times of files, and options; or None."""


class PrivateSource:
    """What most sources are: private text, one owner per record, every token a target."""

    __slots__ = ()
    public = False
    several_owners = False
    loss_mask = False

    def records(self, tally: Tally, progress: Progress) -> Iterator[Record]:
        """The records among the `entries`; see `Source.records`."""
        for entry in self.entries(progress):
            tally.read()
            if isinstance(entry, Drop):
                tally.drop(entry)
            else:
                yield entry

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """Each entry of the source: its record, or why there is none."""
        raise NotImplementedError


class FileSource(PrivateSource):
    """A private source that reads the files ``paths`` one after another."""

    __slots__ = ()
    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of all files, as they lie on disk."""
        return total_size(self.paths)

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


class SourceModule(Protocol):
    """What each file of this folder offers to the registry."""

    def build(self, paths: list[str], options: SourceOptions) -> Source:
        """The source for ``paths``; `UseError` if they or the options cannot be used."""

    def matches(self, path: Path) -> bool:
        """Whether an existing ``path`` looks like this kind; cheap, never raises."""
