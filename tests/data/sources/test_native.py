"""Columns read natively are the records and drops that Python's parser makes of each row."""

from __future__ import annotations

import gzip
import json
import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.fuzz import TEXTS, USERS, deep
from userdp.data.columns import Columns
from userdp.data.progress import NoProgress
from userdp.data.records import Record, Tally
from userdp.data.sources import SourceOptions, native_json, open_source, plain
from userdp.errors import UseError

Outcome = tuple[list[Record], dict[str, int], int] | str
ODD = [
    b"", b" ", b"{}", b"[]", b"{", b"}", b"{}{}", b"null", b'"}', b'{"user":"a"', b'"text":"t"}',
    b'{"user":"a","user":"b","text":"t"}', b'{"user":"a","text":"t","text":"u"}',
    b'{"us\\u0065r":"a","text":"t"}', b'{"user":"a","us\\u0065r":"b","text":"t"}',
    b'{"user":"a","text":"t","x":1,"x":2}', b'{"x":{"user":"z"},"user":"a","text":"t"}',
    b'{"user":"a","text":"t"}{"user":"b","text":"u"}', b'{"user":"a","text":"t"},{"user":"b"}',
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


def outcome(path, *, native: bool, kind: str = "jsonl", **options) -> Outcome:
    tally, got = Tally(), []
    try:
        source = open_source([str(path)], kind=kind, options=SourceOptions(**options))
        if native:
            for block in source.blocks(tally, NoProgress()):
                got += list(block)
        else:
            got = list(source.records(tally, NoProgress()))
    except UseError as error:
        return error.message
    return got, dict(tally.drops), tally.records_read


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


def test_each_odd_line_alone_and_between_regular_ones(tmp_path):
    path = tmp_path / "a.jsonl"
    good = b'{"user": "a", "text": "t"}\n'
    for line in [*ODD, *(line_of(random.Random(seed)) for seed in range(300))]:
        for content in (line, good + line + b"\n" + good, line + b"\r\n" + good):
            path.write_bytes(content)
            expected = outcome(path, native=False)
            assert outcome(path, native=True) == expected, content[:200]


@pytest.mark.parametrize("small", [False, True], ids=["one block", "blocks of some lines"])
def test_files_of_many_lines(tmp_path, monkeypatch, small):
    if small:
        monkeypatch.setattr(native_json.whole_lines, "__defaults__", (200,))
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
        options = {"date_field": "date", "held_out_from": "2018-01-01"} if seed % 4 == 0 else {}
        assert outcome(path, native=True, **options) == outcome(path, native=False, **options)


def columns_of(path) -> list[bool]:
    source = open_source([str(path)])
    return [isinstance(b, Columns) for b in source.blocks(Tally(), NoProgress())]


@pytest.mark.parametrize("user", ["ana", 17, None])
def test_regular_files_are_read_natively(tmp_path, user):
    path = tmp_path / "a.jsonl"
    lines = [{"user": user if n % 2 else f"u{n}" if user != 17 else n, "text": "é\n{[\"}" * 99,
              "more": [{"user": 1}]} for n in range(20)]  # fmt: skip
    for end in ("\n", "\r\n"):
        path.write_bytes("".join(json.dumps(line) + end for line in lines).encode())
        assert all(columns_of(path))


def differs(tmp_path) -> bool:
    path = tmp_path / "a.jsonl"
    for line in ODD:
        path.write_bytes(b'{"user": "a", "text": "t"}\n' + line + b"\n")
        if outcome(path, native=True) != outcome(path, native=False):
            return True
    return False


def test_a_block_given_to_arrow_unchecked_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(native_json, "_regular_lines", lambda block: block.count(b"\n"))
    assert differs(tmp_path)


@pytest.mark.parametrize("guard", ["_INFINITE", "_DIGITS", "_NESTED", "_decodes"])
def test_each_guard_is_needed(tmp_path, monkeypatch, guard):
    class Never:
        def search(self, block):
            return None

    off = {"_NESTED": 10**9, "_decodes": lambda block: True}.get(guard, Never())
    monkeypatch.setattr(native_json, guard, off)
    assert differs(tmp_path)


def test_blank_text_judged_by_ascii_alone_is_caught(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    path.write_text('{"user": "a", "text": "\u2003"}\n')
    assert outcome(path, native=True) == outcome(path, native=False)
    monkeypatch.setattr(plain, "_SPACES", plain._USER_SPACES)
    assert outcome(path, native=True) != outcome(path, native=False)


def test_every_white_space_character_is_known():
    leads = {c.encode()[0] for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()}
    assert set(np.flatnonzero(plain._SPACES).tolist()) == leads


def test_deep_nesting_does_not_crash(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(deep(100_000) + "\n" + '{"user": "u", "text": "t"}')
    assert outcome(path, native=True) == outcome(path, native=False)


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


def test_parquet_columns_of_any_type(tmp_path):
    native = 0
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
        options = {"date_field": "date", "held_out_from": "1999-01-01"} if dated else {}
        expected = outcome(path, native=False, kind="parquet", **options)
        assert outcome(path, native=True, kind="parquet", **options) == expected
        source = open_source([str(path)], options=SourceOptions(**options))
        try:
            native += any(isinstance(b, Columns) for b in source.blocks(Tally(), NoProgress()))
        except UseError:
            continue
    assert native > 10
