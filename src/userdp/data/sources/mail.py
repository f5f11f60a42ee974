"""Mail messages to records, for the sources ``mbox`` and ``maildir``.

A record is a message; its user is the sender's address, its owners are the sender and the
receivers (see `userdp.data.ownership`). Messages attached to it (forwarded as an attachment, the
parts of a digest) are other people's text: left out, and counted. The text is what Chua et al.
2024, Appendix B, keep::

    Date: Mon, 14 May 2001 16:39:00 -0700
    From: ana@example.org
    To: ben@example.org
    Subject: lunch

    Shall we?

Their preprocessing of the Enron mail, each step an option: ``receivers`` (one record per receiver,
Cc and Bcc included), ``drop_forwarded``, ``drop_repeats`` (drop a message in which a 20-gram of
words repeats).
"""

from __future__ import annotations

import email
import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from userdp.data.records import Drop, Record
from userdp.data.sources.base import PrivateSource, SourceOptions
from userdp.data.sources.rows import is_from, parse_day

_NGRAM = 20
_FORWARDED_SUBJECT = re.compile(r"\s*((re|aw)\s*:\s*)*(fw|fwd|wg)\s*:", re.IGNORECASE)
_FORWARDED_BODY = re.compile(
    r"^[ >]*-{2,}\s*(forwarded (by|message)|begin forwarded)", re.IGNORECASE | re.MULTILINE
)
_TAGS = re.compile(r"<[^<>]*>")
_ASIDE = re.compile(r'"(?:\\.|[^"\\]){0,200}"(?!@)|\((?:\\.|[^()\\]){0,200}\)', re.DOTALL)
"""A quoted name and a comment in a header (of bounded length, so that a hostile one costs no more);
a quoted part before @ is of an address."""
_AT = re.compile(r" ?[\[({<] ?at ?[\])}>] ?| at (?=[^ @]+\.)", re.IGNORECASE)
"""How archives of mailing lists spell the @ of an address: "ana at example.org"."""
_ADDRESS = re.compile(r'(?:"[^"]*"|[^\s"<>(),;:@]+)@[^\s"<>(),;:@]+')


@dataclass(frozen=True, kw_only=True, slots=True)
class MailSource(PrivateSource):
    """Messages as records.

    Args:
        paths: where they lie.
        options: ``receivers`` makes one record per receiver instead of one per message;
            ``drop_forwarded`` drops what says it is forwarded, in its subject (``Fw:``) or body
            (``---- Forwarded by``); ``drop_repeats`` drops what has a 20-gram of words twice;
            messages of the day ``held_out_from`` and later are held out.
    """

    paths: tuple[Path, ...]
    options: SourceOptions

    several_owners = True

    def __post_init__(self) -> None:
        parse_day(self.options.held_out_from)

    def rules(self) -> dict[str, Any]:
        """How messages become records, for `Source.facts`."""
        names = ("receivers", "drop_forwarded", "drop_repeats", "held_out_from")
        return {name: getattr(self.options, name) for name in names}

    def parse(self, content: bytes, order: int) -> Iterator[Record | Drop]:
        """The records of one message, or why there is none; those of one message share ``order``.

        A message without a sender's address is dropped, and each message attached to it.
        """
        try:
            message = email.message_from_bytes(content)
            senders = _addresses(message, "From") or _addresses(message, "Sender")
            receivers = _addresses(message, "To", "Cc", "Bcc")
            body, attached = _body(message)
            subject = _header(message, "Subject")
            date = _header(message, "Date")
        except (MessageError, ValueError, LookupError, RecursionError, TypeError):
            yield Drop.UNREADABLE
            return
        yield from [Drop.ATTACHED] * attached
        problem = self._problem(subject, body)
        day = parse_day(self.options.held_out_from)
        held_out = False if day is None else _is_from(date, day)
        if isinstance(held_out, Drop):
            problem, held_out = problem or held_out, False
        each = [[one] for one in receivers] or [[]]
        for named in each if self.options.receivers else [receivers]:
            if not senders:
                yield Drop.NO_USER
            elif self.options.receivers and not named:
                yield Drop.NO_RECEIVER
            else:
                head = f"Date: {date}\nFrom: {senders[0]}\nTo: {', '.join(named)}\n"
                text = f"{head}Subject: {subject}\n\n{body}".encode(errors="replace")
                names = dict.fromkeys([senders[0], *named])
                owners = tuple(one.encode(errors="replace") for one in names)
                if problem is not None:
                    yield Record(owners[0], b"", order, owners=owners, unusable=problem)
                else:
                    several = owners if len(owners) > 1 else ()
                    yield Record(owners[0], text, order, held_out, owners=several)

    def _problem(self, subject: str, body: str) -> Drop | None:
        if not body.strip():
            return Drop.EMPTY_TEXT
        if self.options.drop_forwarded and _is_forwarded(subject, body):
            return Drop.FORWARDED
        if self.options.drop_repeats and _repeats_ngram(body):
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


def _is_from(date: str, day: Any) -> bool | Drop:
    try:
        moment = parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError):
        return Drop.NO_DATE
    return is_from(moment, day)


def _addresses(message: Message, *names: str) -> list[str]:
    """The addresses in some headers, lower case, each once.

    What stands in angle brackets is an address; names and comments are none, whatever commas they
    have, and a part without @ is none.
    """
    values = [str(value).split() for name in names for value in message.get_all(name, [])]
    plain = [_ASIDE.sub(" ", _AT.sub("@", " ".join(value))) for value in values]
    inner = [
        part.rpartition("<")[2].partition(">")[0] for part in re.split("[,;:]", ",".join(plain))
    ]
    addresses = [part.strip("' ").lower() for part in inner]
    return list(dict.fromkeys(one for one in addresses if _ADDRESS.fullmatch(one)))


def _header(message: Message, name: str) -> str:
    value = message.get(name)
    if value is None:
        return ""
    try:
        text = str(make_header(decode_header(value)))
    except (ValueError, LookupError, MessageError):
        text = str(value)
    return " ".join(text.split())


def _body(message: Message) -> tuple[str, int]:
    """The plain text of a message, and how many messages are attached to it.

    Of HTML alone the text is what is left without its tags.
    """
    parts: list[Message] = []
    waiting, attached = [message], 0
    while waiting:
        part = waiting.pop()
        inner: Any = part.get_payload() if part.is_multipart() else []
        if part.get_content_type() == "multipart/digest":
            attached += len(inner)
        elif part.get_content_maintype() == "message":
            attached += 1
        elif part.get_content_disposition() != "attachment":
            waiting += reversed(inner)
            parts.append(part)
    for kind in ("text/plain", "text/html"):
        texts = [_decoded(part) for part in parts if part.get_content_type() == kind]
        if texts:
            text = "\n".join(texts).replace("\r\n", "\n")
            return text if kind == "text/plain" else _TAGS.sub(" ", text), attached
    return "", attached


def _decoded(part: Message) -> str:
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    for charset in (part.get_content_charset(), "utf-8"):
        try:
            if charset:
                return payload.decode(charset)
        except (LookupError, UnicodeError, ValueError):
            continue
    return payload.decode("latin-1")  # old mail names no charset; every byte is a letter then
