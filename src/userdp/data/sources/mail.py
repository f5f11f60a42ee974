"""Mail: mbox archives, and folders with one message per file (Maildir, the Enron archive).

A record is a message; its user is the sender's address, its owners are the sender and the
receivers (see `userdp.data.ownership`). What a message quotes of another one stays in its text,
as what its sender sent; whose words they were cannot be told. Messages attached to it (forwarded as
an attachment, the parts of a digest) are other people's text: left out, and counted. The text is
what Chua et al. 2024, Appendix B, keep::

    Date: Mon, 14 May 2001 16:39:00 -0700
    From: ana@example.org
    To: ben@example.org
    Subject: lunch

    Shall we?

Their preprocessing of the Enron mail, each step an option: ``receivers`` (one record per receiver,
Cc and Bcc included), ``drop_forwarded``, ``drop_repeats`` (drop a message in which a 20-gram of
words repeats).

**mbox.** Files ending in ``.mbox``, ``.mbx`` or one of these and ``.gz`` in a folder, or any file
named. Each message begins with a line ``From ``::

    From ana@example.org Mon May 14 16:39:00 2001
    From: Ana <ana@example.org>

Such a line has a date, and a header follows it; other lines that begin with ``From `` are text of
the message in which they stand. ``>From `` is how a program wrote a line ``From `` of the text.

**maildir.** Every file below a folder is a message, in the order of the paths; ``tmp`` and hidden
files are left out, and so are hidden folders, but for those that hold mail themselves (Maildir++)::

    maildir/lay-k/inbox/1.          (Enron: enron_mail_20150507.tar.gz, unpacked)
    Maildir/cur/1719390000.M1.host:2,S
    Maildir/.Sent/cur/1719390000.M2.host:2,S

The Enron set of Chua et al. 2024::

    userdp prepare maildir --source maildir --set input.receivers=true \\
        --set input.drop_forwarded=true --set input.drop_repeats=true --out store
"""

from __future__ import annotations

import email
import gzip
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources.input_files import GZIP_MAGIC, beginning, holds
from userdp.data.sources.rows_to_records import first_held_out, is_from, record_of
from userdp.data.sources.source import At, Entry, SourceOptions

_NGRAM = 20
_FORWARDED_SUBJECT = re.compile(r"\s*((re|aw)\s*:\s*)*(fw|fwd|wg)\s*:", re.IGNORECASE)
_FORWARDED_BODY = re.compile(
    r"^[ >]*-{2,}\s*(forwarded (by|message)|begin forwarded)", re.IGNORECASE | re.MULTILINE
)
_ASIDE = re.compile(r'"(?:\\.|[^"\\]){0,200}"(?!@)|\((?:\\.|[^()\\]){0,200}\)', re.DOTALL)
"""A quoted name and a comment in a header (of bounded length, so that a hostile one costs no more);
a quoted part before @ is of an address."""
_AT = re.compile(r" ?[\[({<] ?at ?[\])}>] ?| at (?=[^ @]+\.)", re.IGNORECASE)
"""How archives of mailing lists spell the @ of an address: "ana at example.org"."""
_ADDRESS = re.compile(r'(?:"[^"]*"|[^\s"<>(),;:@]+)@[^\s"<>(),;:@]+')
SUFFIXES = (".mbox", ".mbx", ".mbox.gz", ".mbx.gz")
_HEADER = rb"[ \t]*\r?\n(?=[!-9;-~]+[ \t]*:|>From )"
_DATED = re.compile(
    rb"(?:^|(?<=\xef\xbb\xbf))From [^\n]{0,300}?\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? "
    rb"(?=[^\n]{0,40}\b\d{4}\b)[ \d]{0,4}[A-Z][a-z]{2} [^\n]{0,20}?\b\d{1,2}:\d\d\b"
    rb"[^a-z\n]{0,40}(?:\([^\n]{0,40}\)|remote from [^\n]{0,99})?" + _HEADER,
    re.MULTILINE,
)
"""With a date of asctime's or of RFC 5322; only a zone and a year may follow the time."""
_BREAKS = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*")
_FRAME = re.compile(rb"^>(>*From )|^\r?\n\Z", re.MULTILINE)
"""What writers of mbox add to a message: a mark of quotation, and an empty line at the end."""


def is_mbox(path: Path) -> bool:
    """Whether a file begins as an mbox does, or a folder holds files named so."""
    return holds(path, SUFFIXES) or bool(_DATED.match(_BREAKS.sub(b"", beginning(path), count=1)))


def is_maildir(path: Path) -> bool:
    """Whether it is a Maildir by its folders."""
    return path.is_dir() and (path / "cur").is_dir() and (path / "new").is_dir()


def message_files(paths: list[str]) -> tuple[Path, ...]:
    """All files below folders that hold a message per file."""
    files = (file for name in paths for file in _files_of(Path(name)))
    return tuple({file.resolve(): file for file in files}.values())  # each is read once


def _files_of(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise UseError(f"{folder} is not a folder of mail", hint="one message per file, below it")
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if name != "tmp" and (not name.startswith(".") or is_maildir(Path(place, name)))
        )
        for name in sorted(names):
            file = Path(place) / name
            if not name.startswith(".") and file.is_file():
                yield file


def read_message(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """The records of a file that is one message."""
    return _entries(path.read_bytes(), options)


def read_mbox(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """The records of each message; text before the first is one more."""
    box = _content(path)
    if not len(box):
        return
    begins = dict(mark.span() for mark in _DATED.finditer(box))
    if not begins:
        raise UseError(
            f"{path} is no mbox: no line begins a message, as `From ana@example.org Mon May 14 "
            "16:39:00 2001` does with a header after it"
        )
    breaks = _BREAKS.match(box)
    first = breaks.end() if breaks else 0
    begins = {first: first} | begins
    for start, end in zip(begins.values(), [*begins, len(box)][1:], strict=True):
        yield from _entries(_FRAME.sub(rb"\1", box[start:end]), options)
        at(end)


def _content(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file, over a memory map; those of gzip in memory."""
    with path.open("rb") as file:
        if file.peek(2)[:2] == GZIP_MAGIC:
            return gzip.decompress(file.read())
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.peek(1) else b""


def _entries(content: bytes, options: SourceOptions) -> Iterator[Entry]:
    """The records of one message, or why there is none.

    A message without a sender's address is dropped, and each message attached to it. One whose body
    cannot be read has its owners all the same (see `record_of`).
    """
    problem, body, attached = None, "", 0
    try:
        message = email.message_from_bytes(content)
        body, attached = _body(message)
    except (MessageError, ValueError, LookupError, RecursionError, TypeError):
        message, problem = BytesHeaderParser().parsebytes(content), Drop.UNREADABLE
    senders = _addresses(message, "from") or _addresses(message, "sender")
    receivers = _addresses(message, "to", "cc", "bcc")
    subject, date = _header(message, "subject"), _header(message, "date")
    yield from [Drop.ATTACHED] * attached
    held_out, problem = _is_from(date, options), problem or _problem(subject, body, options)
    each = [[one] for one in receivers] or [[]]
    for to in each if options.receivers else [receivers]:
        if not senders:
            yield Drop.NO_USER
        elif options.receivers and not to:
            yield Drop.NO_RECEIVER
        else:
            head = f"Date: {date}\nFrom: {senders[0]}\nTo: {', '.join(to)}\n"
            text = f"{head}Subject: {subject}\n\n{body}".encode(errors="replace")
            owners = [one.encode(errors="replace") for one in (senders[0], *to)]
            yield record_of(owners, problem or text, held_out)


def _problem(subject: str, body: str, options: SourceOptions) -> Drop | None:
    if not body.strip():
        return Drop.EMPTY_TEXT
    if options.drop_forwarded and _is_forwarded(subject, body):
        return Drop.FORWARDED
    if options.drop_repeats and _repeats_ngram(body):
        return Drop.REPEATED_NGRAM
    return None


def _is_forwarded(subject: str, body: str) -> bool:
    """Whether a message says that it is forwarded.

    >>> _is_forwarded("RE: FW: lunch", "x"), _is_forwarded("forward", "on we go")
    (True, False)
    """
    return bool(_FORWARDED_SUBJECT.match(subject) or _FORWARDED_BODY.search(body))


def _repeats_ngram(text: str, size: int = _NGRAM) -> bool:
    """Whether ``size`` words in a row stand in ``text`` twice.

    >>> _repeats_ngram("a b a b", 2), _repeats_ngram("a b b a", 2)
    (True, False)
    """
    words = text.split()
    grams = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    return len(set(grams)) < len(grams)


def _is_from(date: str, options: SourceOptions) -> bool | Drop:
    day = first_held_out(options)
    try:
        return day is not None and is_from(parsedate_to_datetime(date), day)
    except (ValueError, TypeError, IndexError):
        return Drop.NO_DATE


def _addresses(message: Message, *names: str) -> list[str]:
    """The addresses in some headers, lower case, each once.

    What stands in angle brackets is an address; names and comments are none, whatever commas they
    have, and a part without @ is none.
    """
    values = [value.split() for name in names for value in _values(message, name)]
    plain = [_ASIDE.sub(" ", _AT.sub("@", " ".join(value))) for value in values]
    inner = [
        part.rpartition("<")[2].partition(">")[0] for part in re.split("[,;:]", ",".join(plain))
    ]
    addresses = [part.strip("' ").lower() for part in inner]
    return list(dict.fromkeys(one for one in addresses if _ADDRESS.fullmatch(one)))


def _header(message: Message, name: str) -> str:
    text = next(_values(message, name), "")
    with suppress(ValueError, LookupError, MessageError):
        text = str(make_header(decode_header(text)))
    return " ".join(text.split())


def _values(message: Message, name: str) -> Iterator[str]:
    """A header's values, of which some programs write the letters as they are (RFC 6532)."""
    for other, value in message.raw_items():
        if other.lower() == name:
            yield _letters(value.encode(errors="surrogateescape"))


def _body(message: Message) -> tuple[str, int]:
    """The plain text of a message, and how many messages are attached to it.

    Of HTML alone the text is what a reader sees of it.
    """
    parts, attached = _own_parts(message)
    for kind in ("text/plain", "text/html"):
        texts = [_decoded(part) for part in parts if part.get_content_type() == kind]
        if kind == "text/html":
            texts = list(map(_seen, texts))
        text = "\n".join(texts).replace("\r\n", "\n")
        if text.strip():  # some programs send an empty plain part beside the one that says it
            return text, attached
    return "", attached


def _seen(html: str) -> str:
    from bs4 import BeautifulSoup, ParserRejectedMarkup

    try:
        return BeautifulSoup(html, "html.parser").get_text()
    except ParserRejectedMarkup:  # it quotes the mail
        raise ValueError("no HTML") from None


def _own_parts(part: Message) -> tuple[list[Message], int]:
    """The parts of a message without other messages and attachments; how many messages those are.

    The parts of a digest are messages, whatever their type.
    """
    inner: Any = part.get_payload() if part.is_multipart() else []
    if part.get_content_type() == "multipart/digest":
        return [], len(inner)
    if part.get_content_maintype() == "message":
        return [], 1
    if part.get_content_disposition() == "attachment":
        return [], 0
    below = [_own_parts(one) for one in inner]
    parts = [one for own, _ in below for one in own]
    return [part, *parts], sum(attached for _, attached in below)


def _decoded(part: Message) -> str:
    payload, charset = part.get_payload(decode=True), part.get_content_charset("utf-8")
    return _letters(payload, charset) if isinstance(payload, bytes) else ""


def _letters(content: bytes, charset: str = "utf-8") -> str:
    for one in (charset, "utf-8"):
        with suppress(LookupError, ValueError):
            return content.decode(one)
    return content.decode("latin-1")  # old mail names no charset; every byte is a letter then
