"""The one path from a row to a record gives what plain Python makes of each row."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter
from datetime import UTC, datetime
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import userdp.data.sources.rows as rows_module
from tests.data.fuzz import TEXTS, USERS
from userdp.core.errors import UseError
from userdp.data.progress import NoProgress
from userdp.data.records import Drop, Record, Tally
from userdp.data.sources import SourceOptions, jsonl, open_source
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


def value_of(scalar: pa.Scalar):
    try:
        return scalar.as_py()
    except (UnicodeDecodeError, ValueError, OverflowError):
        return b"\xff"


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


def expected(path, *, kind: str = "jsonl", **options) -> Outcome | None:
    """What reading row by row gives; None where the file as a whole may be refused."""
    if kind == "jsonl":
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        lines = list(BytesIO(content))
        rows = [object_of(line, first=number == 0) for number, line in enumerate(lines)]
    else:
        table = pq.read_table(path)
        columns = [[value_of(scalar) for scalar in column] for column in table.columns]
        rows = [
            dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
    day = datetime.fromisoformat("2018-01-01" if kind == "jsonl" else "1999-01-01")
    day = day.replace(tzinfo=UTC) if options else None
    needed = ["user", "text", *(["date"] if options else [])]
    objects = [row for row in rows if not isinstance(row, Drop)]
    if any(all(name not in row for row in objects) for name in needed) and rows:
        return None
    got = [row if isinstance(row, Drop) else record_of(row, n, day) for n, row in enumerate(rows)]
    drops = Counter(str(one) for one in got if isinstance(one, Drop))
    return [one for one in got if not isinstance(one, Drop)], dict(drops), len(rows)


def outcome(path, *, kind: str = "jsonl", **options) -> Outcome:
    tally = Tally()
    try:
        source = open_source([str(path)], kind=kind, options=SourceOptions(**options))
        got = list(source.records(tally, NoProgress()))
    except UseError as error:
        return error.message
    return got, dict(tally.drops), tally.records_read


def differs(path, **options) -> bool:
    """Whether the package reads a file otherwise than the plain words above do."""
    wanted, got = expected(path, **options), outcome(path, **options)
    if wanted is None:  # refused, or all of it dropped
        return not isinstance(got, str) and got[0] != []
    return got != wanted


def line_of(draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return draw.choice(ODD)
    row = {"user": draw.choice(["ana", "ben", draw.choice(USERS), draw.choice(BLANKS)]),
           "text": draw.choice(["some text", draw.choice(TEXTS), draw.choice(BLANKS)])}  # fmt: skip
    if draw.random() < 0.3:
        row["date"] = draw.choice(DATES)
    if draw.random() < 0.2:
        row["x"] = draw.choice([1, 1.5, {"user": "x", "text": ["y"]}, [[1], {}], None])
    line = bytearray(json.dumps(row, ensure_ascii=draw.random() < 0.5).encode("utf-8", "replace"))
    if draw.random() < 0.2 and len(line) < 10_000:
        place = draw.randrange(len(line))
        line[place : place + draw.randint(0, 2)] = draw.choice(
            [b"", b"{", b"}", b'"', b"\\", b",", b"\n", b"\r", b"\xff", b"\0", b"[", b"e", b"-"]
        )
    return bytes(line)


BLANKS = blanks()


def odd_files(path):
    """Writes each odd line, alone and between regular ones, and lets the caller look."""
    good = b'{"user": "a", "text": "t"}\n'
    for line in [*ODD, *(line_of(random.Random(seed)) for seed in range(300))]:
        for content in (line, good + line + b"\n" + good, line + b"\r\n" + good):
            path.write_bytes(content)
            yield content


def test_each_odd_line_alone_and_between_regular_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    for content in odd_files(path):
        if b"\0" not in content:  # refused as a binary file
            assert not differs(path), content[:200]


@pytest.mark.parametrize("small", [False, True], ids=["one block", "blocks of some lines"])
def test_files_of_many_lines(tmp_path, monkeypatch, small):
    if small:
        monkeypatch.setattr(jsonl, "_BLOCK", 200)
    path = tmp_path / "a.jsonl"
    for seed in range(150):
        draw = random.Random(seed)
        odd = draw.choice([0, 0.01, 0.2])
        lines = [
            line_of(draw)
            if draw.random() < odd
            else json.dumps({"user": draw.choice([f"u{n % 3}", n]) if seed % 3 else f"u{n}",
                             "text": draw.choice([f"t{n}", draw.choice(BLANKS), "ü 🙂", None]),
                             "date": draw.choice(DATES[:3])}).encode()
            for n in range(draw.randint(1, 60))
        ]  # fmt: skip
        content = draw.choice([b"\n", b"\r\n"]).join(lines) + draw.choice([b"", b"\n"])
        path.write_bytes(gzip.compress(content, 1) if seed % 5 == 0 else content)
        options = {"date": "date", "held_out_from": "2018-01-01"} if seed % 4 == 0 else {}
        if b"\0" not in content[:4096]:
            assert not differs(path, **options)


def test_a_byte_order_mark_may_stand_before_each_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(b'\xef\xbb\xbf{"user":"a","text":"t"}\n')
    records, drops, read = outcome(tmp_path)
    assert (len(records), drops, read) == (2, {}, 2)


def some_odd_file_differs(tmp_path) -> bool:
    path = tmp_path / "a.jsonl"
    return any(b"\0" not in content and differs(path) for content in odd_files(path))


@pytest.mark.parametrize(
    "lines",
    [
        lambda block: block.decode(errors="replace").removesuffix("\n").split("\n"),
        lambda block: [None] if b"\xff" in block else block.decode(errors="replace").splitlines(),
    ],
    ids=["other bytes for bad ones", "a bad line spoils its block"],
)
def test_lines_cut_otherwise_are_caught(tmp_path, monkeypatch, lines):
    monkeypatch.setattr(jsonl, "_lines", lines)
    assert some_odd_file_differs(tmp_path)


def test_blank_text_judged_by_ascii_alone_is_caught(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text('{"user": "a", "text": "\u2003"}\n')
    assert not differs(path)
    judged = lambda value: value.encode() if value.strip(" \t\r\n") else Drop.EMPTY_TEXT  # noqa: E731
    monkeypatch.setattr(rows_module, "text_of", judged)
    assert differs(path)


# Parquet


def column(draw: random.Random, size: int) -> pa.Array:
    texts = ["ana", "ben", None, "", "x" * 50, draw.choice(BLANKS), "é", " a "]
    values = [draw.choice(texts) for _ in range(size)]
    packed = [None if v is None else v.encode() for v in values]
    numbers = [draw.choice([1, -(2**63), 2**63 - 1, None]) for _ in range(size)]
    return draw.choice([
        lambda: pa.array(values), lambda: pa.array(values, pa.large_string()),
        lambda: pa.array(values, pa.string_view()), lambda: pa.array(packed, pa.binary()),
        lambda: pa.array(packed, pa.large_binary()), lambda: pa.array(values).dictionary_encode(),
        lambda: pa.array(numbers, pa.int64()), lambda: pa.nulls(size), lambda: pa.nulls(size, "u1"),
        lambda: pa.array([b"\xff", b"ok", None] * size, pa.binary()).slice(0, size),
        lambda: pa.array([draw.choice([["a"], ["a", "b"], [], None]) for _ in range(size)]),
        lambda: pa.array([draw.choice([0, 2**40, None]) for _ in range(size)], pa.timestamp("ms")),
    ])()  # fmt: skip


@pytest.mark.slow
def test_parquet_columns_of_any_type(tmp_path):
    read = 0
    for seed in range(200):
        draw = random.Random(seed)
        size = draw.randint(0, 30)
        names = draw.choice([["user", "text"], ["user", "text", "date"], ["text"], ["x", "user"]])
        path = tmp_path / "a.parquet"
        try:
            table = pa.table({name: column(draw, size) for name in names})
            pq.write_table(table, path, row_group_size=draw.choice([7, 100]))
        except (pa.ArrowException, NotImplementedError):  # Parquet itself cannot hold it
            continue
        dated = "date" in names or draw.random() < 0.1
        options = {"date": "date", "held_out_from": "1999-01-01"} if dated else {}
        assert not differs(path, kind="parquet", **options), names
        read += not isinstance(outcome(path, kind="parquet", **options), str)
    assert read > 50
