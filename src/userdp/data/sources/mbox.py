"""mbox archives, as most mail programs and mailing lists write them.

Expected input: a file whose messages each begin with a line ``From ``::

    From ana@example.org Mon May 14 16:39:00 2001
    From: Ana <ana@example.org>
    To: ben@example.org
    Subject: lunch

    Shall we?

Such a line has a date, and a header follows it; other lines that begin with ``From `` are text of
the message in which they stand. (Some programs write no date: where the first line of a file has
none, a line ``From `` with at most one word after an empty line begins a message.) Where each
message has a ``Content-Length`` that leads to the next, these lengths decide; otherwise ``>From ``
is how a program wrote a line ``From `` of the text.

Files ending in ``.mbox`` or ``.mbx`` in a folder, or any file named. See `mail` for what becomes of
a message, and for the options.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import FileSource, SourceOptions
from userdp.data.sources.mail import MailSource
from userdp.data.sources.paths import beginning, expand, words
from userdp.errors import UseError

SUFFIXES = (".mbox", ".mbx")
_HEADER = rb"[ \t]*\r?\n(?=[!-9;-~]+[ \t]*:|>From )"
_DATED = re.compile(
    rb"(?:^|(?<=\xef\xbb\xbf))From [^\n]{0,300}?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? "
    rb"(?=[^\n]{0,40}\b\d{4}\b)[ \d]{0,4}[A-Z][a-z]{2} [^\n]{0,20}?\b\d{1,2}:\d\d\b"
    rb"[^a-z\n]{0,40}(?:\([^\n]{0,40}\)|remote from [^\n]{0,99})?" + _HEADER,
    re.MULTILINE,
)
"""With a date of asctime's or of RFC 5322; only a zone and a year may follow the time."""
_UNDATED = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From \S*" + _HEADER)
_WITH_LENGTH = re.compile(
    rb"(?i)(?>[^\n]*\n(?:[^\r\n][^\n]*\n)*?Content-Length:[ \t]*(\d{1,15})[ \t]*\r?\n)"
    rb"(?:[^\r\n][^\n]*\n)*+\r?\n"
)
"""The line that begins a message, and its header with the length of its body."""
_BREAKS = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*")
_FRAME = re.compile(rb"^>(>*From )|^\r?\n\Z", re.MULTILINE)
"""What writers of mbox add to a message: a mark of quotation, and an empty line at the end."""


def build(paths: list[str], options: SourceOptions) -> _Mbox:
    """The source for files, folders and patterns ``paths``."""
    files = expand(paths, suffixes=SUFFIXES, what="mbox files")
    return _Mbox(paths=files, options=options)


def matches(path: Path) -> bool:
    """Whether a file begins as an mbox does, or a folder holds files named so."""
    if path.is_dir():
        return any(file.name.endswith(SUFFIXES) for file in path.iterdir())
    return _BREAKS.sub(b"", beginning(path), count=1).startswith(b"From ")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mbox(MailSource, FileSource):
    """Messages of mbox files."""

    kind = "mbox"

    def facts(self) -> dict[str, Any]:
        """The number of files and bytes, and the rules."""
        return {**FileSource.facts(self), **self.rules()}

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The records of all messages; see `PrivateSource.entries`."""
        order = count()
        for path, _ in self.each_file(progress):
            try:
                with path.open("rb") as file:
                    if not path.stat().st_size:
                        continue
                    box = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    for message in _messages(box, path):
                        yield from self.parse(message, next(order))
            except OSError as error:
                raise UseError(f"{path} cannot be read: {words(error)}") from error


def _messages(box: mmap.mmap, path: Path) -> Iterator[bytes]:
    """Each message without the line that begins it; text before the first is one more."""
    first = _past_breaks(box, 0)
    undated = _UNDATED.match(box, first) and not _DATED.match(box, first)
    begins = dict(mark.span() for mark in (_UNDATED if undated else _DATED).finditer(box))
    if not begins:
        raise UseError(
            f"{path} is no mbox: no line begins a message, as `From ana@example.org Mon May 14 "
            "16:39:00 2001` does with a header after it"
        )
    begins = {first: first} | begins
    spans = _by_length(box, begins)
    ends = zip(begins.values(), [*begins, len(box)][1:], strict=True)
    for start, end in spans or ends:
        yield box[start:end] if spans else _FRAME.sub(rb"\1", box[start:end])


def _by_length(box: mmap.mmap, begins: dict[int, int]) -> list[tuple[int, int]]:
    """Where each message begins and ends by its Content-Length; nothing unless all lengths fit.

    The length in a single message is not believed: senders may write that header, and could take
    the messages of other people after theirs.
    """
    spans: list[tuple[int, int]] = []
    at = next(iter(begins))
    while at in begins and (head := _WITH_LENGTH.match(box, at)):
        end = head.end() + int(head[1])
        spans.append((begins[at], end))
        at = _past_breaks(box, end)
    return spans if at == len(box) else []


def _past_breaks(box: mmap.mmap, at: int) -> int:
    """Where the line breaks after a place end."""
    breaks = _BREAKS.match(box, at)
    return at if breaks is None else max(at, breaks.end())
