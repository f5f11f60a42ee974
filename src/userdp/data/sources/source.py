"""What a source of records is, and the options of how its input is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from userdp.core.stages import Progress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources.input_files import read_to_the_end

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
            units of the place are read. Of a `data.sources.rows_to_records.Table` it gives rows.
        several_owners: whether records may name `Record.owners`, to be settled by `ownership`.
        loss_mask: whether records have `Record.pieces`, so that the store has a loss mask.
        fields: of a row that are looked at, the user's first; none where places have no rows.
        facts: what the store says of its origin; no text, no user ids, no paths. Of files their
            number and bytes (`files_facts`).
    """

    kind: str
    places: Sequence[Any]
    read: Callable[..., Iterator[Any]]
    several_owners: bool = False
    loss_mask: bool = False
    fields: tuple[str, ...] = ()
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
                tally.written_by.add(entry.written_by)
            yield entry

    def advice(self) -> str:
        """What to look at where none of the records can be used."""
        return "check PATH and --source"
