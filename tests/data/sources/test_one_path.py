"""The one path from a row to a record gives what plain Python makes of each row."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from datetime import UTC, datetime
from io import BytesIO

import userdp.data.sources.rows as rows_module
from tests.data.sources.fixtures import read
from tests.data.test_fuzz import TEXTS, USERS
from userdp.core.errors import UseError
from userdp.data.records import Drop, Record
from userdp.data.sources.rows import is_from

Outcome = tuple[list[Record], dict[str, int], int] | str
ODD = [
    b"", b" ", b"{}", b"[]", b"{", b"}", b"{}{}", b"null", b'"}', b'{"user":"a"', b'"text":"t"}',
    b'{"user":"a","user":"b","text":"t"}', b'{"user":"a","text":"t","text":"u"}',
    b'{"us\\u0065r":"a","text":"t"}', b'{"user":"a","us\\u0065r":"b","text":"t"}',
    b'{"user":"a","text":"t","x":1,"x":2}', b'{"x":{"user":"z"},"user":"a","text":"t"}',
    b'{"user":"a","text":"t"}{"user":"b","text":"u"}', b'{"user":"a","text":"t"},{"user":"b"}',
    b'\xc2\xa0{"user":"a","text":"t"}', b'{"user":"a","text":"t"}\xe2\x80\x83',
    b' {"user":"a","text":"t"}', b'{"user":"a","text":"t"} ', b'{"user":"a","text":"t"}\r',
    b'{"user":"a",\r"text":"t"}', b'{"user":"a","text":"t\r"}', b'{"user":"a","text":"a}"}',
    b'\xef\xbb\xbf{"user":"a","text":"t"}', b'{"user":"a","text":"t"}\0', b'{"user":"a"\0}',
    b'{"user":"a","text":"\xff"}', b'{"user":"a","text":"t","x":"\xff"}',
    b'{"user":"a","text":"\xed\xa0\x80"}', b'{"user":"a","text":"\\ud83d"}',
    b'{"user":"a","text":"\\udc00"}', b'{"user":"a","text":"\\ud83d\\ude42"}',
    b'{"user":"a","text":"t","x":"\\udc00"}', b'{"user":"a","text":"\\u0000"}',
    b'{"user":"a","text":"t","x":"\\u12G4"}', b'{"user":"a","text":"\\x"}',
    b'{"user":"a","text":"a\x7fb"}', b'{"user":"a","text":"a\tb"}', b"{'user':'a','text':'t'}",
    b'{"user":"a","text":"t",}', b'{"user":"a","text":"t"/**/}', b'{"user":1e2,"text":"t"}',
    *(b'{"user":"a","text":"t","x":%b}' % x for x in (
        b"NaN", b"-NaN", b"Inf", b"-Inf", b"Infinity", b"-Infinity", b"nan", b"01", b"1.", b".5",
        b"1e5", b"1e400", b"1e999999", b"+1", b"-", b"tru", b"Infinit", b"[Inf,1]", b"0x1",
        b"9" * 639, b"9" * 4301, b"[" * 150 + b"]" * 150, b"[" * 990 + b"]" * 990,
        b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000)),
    *(b'{"user":%b,"text":"t"}' % u for u in (
        b"7", b"-0", b"1.0", b"9223372036854775807", b"9223372036854775808", b"-1", b"true",
        b"1" * 30, b"9" * 5000, b'"2011-01-01"', b'"7"', b"null", b"{}", b'["a","b"]', b'["a"]')),
    *(b'{"user":"a","text":%b}' % t for t in (b"7", b"true", b"null", b"[]", b'"2011-01-01"')),
]  # fmt: skip
DATES = ["2017-01-01", "2018-01-01T00:00:00Z", "2019-01-01 10:00", "no", "", None, 1.5e9, "١"]


def blanks() -> list[str]:
    """Every character that counts as white space somewhere, and neighbours that do not."""
    found = [chr(i) for i in range(sys.maxunicode + 1) if chr(i).isspace()]
    return [*found, "".join(found), "\u00a0x", "\u200b", "\u2060", "\u180e", "\x00", "\x1b", "é"]


def object_of(line: bytes, *, first: bool) -> dict | Drop:
    """What a line is, in the plainest words that Python has."""
    try:
        content = line.decode("utf-8-sig" if first else "utf-8")
    except UnicodeDecodeError:
        return Drop.INVALID_UTF8
    if not content.strip():
        return Drop.BLANK_LINE
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return Drop.INVALID_JSON
    return value if isinstance(value, dict) else Drop.NOT_AN_OBJECT


def is_utf8(value: str | bytes) -> bool:
    try:
        value.decode() if isinstance(value, bytes) else value.encode()
    except UnicodeError:
        return False
    return True


def user_or_drop(value) -> bytes | Drop:
    if isinstance(value, bool) or not isinstance(value, str | int | bytes):
        return Drop.USER_NOT_TEXT
    try:
        user = str(value) if isinstance(value, int) else value
    except ValueError:
        return Drop.INVALID_UTF8
    if not is_utf8(user):
        return Drop.INVALID_UTF8
    user = user.encode() if isinstance(user, str) else user
    return user if user.decode().strip() else Drop.NO_USER


def record_of(row: dict, order: int, day: datetime | None) -> Record | Drop:
    """The record of a row, or why there is none; written apart from the package."""
    value = row.get("user")
    if value is None or value == []:
        return Drop.NO_USER_FIELD
    owners = [user_or_drop(one) for one in (value if isinstance(value, list) else [value])]
    for owner in owners:
        if isinstance(owner, Drop):
            return owner
    owners = tuple(dict.fromkeys(owners))
    text, problem = row.get("text"), None
    if text is None:
        problem = Drop.NO_TEXT_FIELD
    elif not isinstance(text, str | bytes):
        problem = Drop.NOT_TEXT
    elif isinstance(text, str) and not text.strip():
        problem = Drop.EMPTY_TEXT
    elif not is_utf8(text):
        problem = Drop.INVALID_UTF8
    elif not (text if isinstance(text, str) else text.decode()).strip():
        problem = Drop.EMPTY_TEXT
    held_out = False if day is None else is_from(row.get("date"), day)
    if problem is None and isinstance(held_out, Drop):
        problem = held_out
    several = owners if len(owners) > 1 else ()
    if problem is not None:
        return problem
    return Record(
        owners[0], text.encode() if isinstance(text, str) else text, order, held_out, owners=several
    )


def expected(path, **options) -> Outcome | None:
    """What reading row by row gives; None where the file as a whole may be refused."""
    lines = list(BytesIO(path.read_bytes()))
    rows = [object_of(line, first=number == 0) for number, line in enumerate(lines)]
    day = datetime(2018, 1, 1, tzinfo=UTC) if options else None
    needed = ["user", "text", *(["date"] if options else [])]
    objects = [row for row in rows if not isinstance(row, Drop)]
    if any(all(name not in row for row in objects) for name in needed) and rows:
        return None
    got = [row if isinstance(row, Drop) else record_of(row, n, day) for n, row in enumerate(rows)]
    drops = Counter(str(one) for one in got if isinstance(one, Drop))
    return [one for one in got if not isinstance(one, Drop)], dict(drops), len(rows)


def outcome(path, **options) -> Outcome:
    try:
        got, tally = read(path, kind="jsonl", **options)
    except UseError as error:
        return error.message
    return got, dict(tally.drops), tally.records_read


def differs(path, **options) -> bool:
    """Whether the package reads a file otherwise than the plain words above do."""
    wanted, got = expected(path, **options), outcome(path, **options)
    if wanted is None:  # refused, or all of it dropped
        return not isinstance(got, str) and got[0] != []
    return got != wanted


BLANKS = blanks()


def test_each_odd_line_alone_and_between_regular_ones(tmp_path):
    path, good = tmp_path / "a.jsonl", b'{"user": "a", "text": "t"}\n'
    for line in ODD:
        for content in (line, good + line + b"\n" + good, line + b"\r\n" + good):
            path.write_bytes(content)
            if b"\0" not in content:  # refused as a binary file
                assert not differs(path), content[:200]


def test_odd_users_texts_and_dates_of_many_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    for seed in range(40):
        draw = random.Random(seed)
        names = ("user", [*USERS, f"u{seed}"]), ("text", [*TEXTS, "some text", *BLANKS])
        lines = [
            json.dumps({name: draw.choice(values) for name, values in (*names, ("date", DATES))})
            for _ in range(draw.randint(1, 60))
        ]
        path.write_text(draw.choice(["\n", "\r\n"]).join(lines) + draw.choice(["", "\n"]))
        options = {"date": "date", "held_out_from": "2018-01-01"} if seed % 4 == 0 else {}
        assert not differs(path, **options)


def test_a_byte_order_mark_may_stand_before_each_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(b'\xef\xbb\xbf{"user":"a","text":"t"}\n')
    records, drops, read = outcome(tmp_path)
    assert (len(records), drops, read) == (2, {}, 2)


def test_blank_text_judged_by_ascii_alone_is_caught(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text('{"user": "a", "text": "\u2003"}\n')
    assert not differs(path)
    judged = lambda value: value.encode() if value.strip(" \t\r\n") else Drop.EMPTY_TEXT  # noqa: E731
    monkeypatch.setattr(rows_module, "text_of", judged)
    assert differs(path)
