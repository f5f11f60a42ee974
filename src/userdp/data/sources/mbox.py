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
_BEGIN = rb"(?:^|(?<=\xef\xbb\xbf))From "
_HEADER = rb"\r?\n(?=[!-9;-~]+[ \t]*:|>From )"
_MONTHS = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DATED = re.compile(
    _BEGIN + rb"[^\n]{0,300}?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +(?:\d{1,2} +)?" + _MONTHS + rb" "
    rb"(?=[^\n]{0,40}\b\d{4}\b)[^\n]{0,20}?\b\d{1,2}:\d\d\b[^a-z\n]{0,40}"
    rb"(?:\([^\n]{0,40}\)|remote from [^\n]{0,99})?[ \t]*" + _HEADER,
    re.MULTILINE,
)
"""With a date of asctime's or of RFC 5322; only a zone and a year may follow the time."""
_UNDATED = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\s]*[ \t]*" + _HEADER)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"^Content-Length:[ \t]*(\d{1,15})[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_LEADING = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*")
_QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)


def build(paths: list[str], options: SourceOptions) -> _Mbox:
    """The source for files, folders and patterns ``paths``."""
    files = expand(paths, suffixes=SUFFIXES, what="mbox files")
    return _Mbox(paths=files, options=options)


def matches(path: Path) -> bool:
    """Whether a file begins as an mbox does, or a folder holds files named so."""
    if path.is_dir():
        return any(file.name.endswith(SUFFIXES) for file in path.iterdir())
    return _LEADING.sub(b"", beginning(path), count=1).startswith(b"From ")


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
                if not path.stat().st_size:
                    continue
                with (
                    path.open("rb") as file,
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as box,
                ):
                    for message in _messages(box, path):
                        if isinstance(message, Drop):
                            yield message
                        else:
                            yield from self.parse(message, next(order))
            except OSError as error:
                raise UseError(f"{path} cannot be read: {words(error)}") from error


def _messages(box: mmap.mmap, path: Path) -> Iterator[bytes | Drop]:
    """Each message without the line that begins it; text before the first is dropped as one."""
    leading = _LEADING.match(box)
    assert leading is not None  # it may be empty
    undated = _UNDATED.match(box, leading.end()) and not _DATED.match(box, leading.end())
    separator = _UNDATED if undated else _DATED
    first = separator.search(box)
    if first is None:
        raise UseError(
            f"{path} is no mbox: no line begins a message",
            hint="a message begins with a line as `From ana@example.org Mon May 14 16:39:00 2001`",
        )
    if first.start() != leading.end():
        yield Drop.UNREADABLE
    spans = _spans_by_length(box, separator, first.start())
    if spans is not None:
        yield from (box[start:end] for start, end in spans)
        return
    start = first.end()
    for mark in separator.finditer(box, start):
        yield _QUOTED.sub(rb"\1", box[start : mark.start()])
        start = mark.end()
    yield _QUOTED.sub(rb"\1", box[start:])


def _spans_by_length(
    box: mmap.mmap, separator: re.Pattern[bytes], at: int
) -> list[tuple[int, int]] | None:
    """Where each message begins and ends by its Content-Length; None unless all lengths fit.

    One message's length alone is not believed: senders can write that header, and could take the
    messages after theirs.
    """
    spans = []
    while at < len(box):
        start = box.find(b"\n", at) + 1
        head = _HEAD_END.search(box, start)
        length = head and _LENGTH.search(box, start, head.end())
        if head is None or not length:
            return None
        end = head.end() + int(length[1])
        after = _LEADING.match(box, end)
        at = len(box) if after is None else after.end()
        if end > len(box) or (at < len(box) and not separator.match(box, at)):
            return None
        spans.append((start, end))
    return spans
