"""JSON Lines: any line is read or counted; a file that is none is refused at once."""

from __future__ import annotations

import gzip
import random

import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import pairs, read
from userdp.core.errors import UseError
from userdp.data.records import Drop, Record
from userdp.data.sources import KINDS, open_source, parsing

GOOD = [{"user": f"u{n % 3}", "text": f"record {n}"} for n in range(50)]


WHOLE = ("a", "t")
ODD: dict[bytes, Drop | tuple[str, str]] = {
    b" \t": Drop.BLANK_LINE, b"\xe2\x80\x83": Drop.BLANK_LINE, b"{}": Drop.NO_USER_FIELD,
    b"[]": Drop.NOT_AN_OBJECT, b"null": Drop.NOT_AN_OBJECT, b"{": Drop.INVALID_JSON,
    b'{"user":"a","text":"t"}{"user":"b","text":"u"}': Drop.INVALID_JSON,
    b'{"user":"a","text":"t",}': Drop.INVALID_JSON, b"{'user':'a'}": Drop.INVALID_JSON,
    b'{"user":"a","text":"a\tb"}': Drop.INVALID_JSON, b"[" * 100_000: Drop.INVALID_JSON,
    b'\xc2\xa0{"user":"a","text":"t"}': Drop.INVALID_JSON,
    b'{"user":"a","user":"b","text":"t"}': ("b", "t"), b' {"user":"a","text":"t"} \r': WHOLE,
    b'{"us\\u0065r":"a","text":"t"}': WHOLE, b'{"x":{"user":"z"},"user":"a","text":"t"}': WHOLE,
    b'{"user":"a","text":"t","x":[NaN,-Infinity,1e400]}': WHOLE,
    b'{"user":"a","text":"t","x":"\\udc00"}': WHOLE,
    b'{"user":"a","text":"\\ud83d"}': Drop.INVALID_UTF8,
    b'{"user":"a","text":"\xff"}': Drop.INVALID_UTF8,
    b'{"user":"a","text":"t","x":"\xff"}': Drop.INVALID_UTF8,
    b'{"user":"a","text":"\\ud83d\\ude42"}': ("a", "🙂"),
    b'{"user":"\\u2003","text":"t"}': Drop.NO_USER,
    b'{"user":"a","text":"\\u2003\\u0085"}': Drop.EMPTY_TEXT, b'{"user":7,"text":"t"}': ("7", "t"),
    b'{"user":9223372036854775808,"text":"t"}': ("9223372036854775808", "t"),
    b'{"user":%b,"text":"t"}' % (b"9" * 5000): Drop.INVALID_JSON,
    b'{"user":1.0,"text":"t"}': Drop.USER_NOT_TEXT, b'{"user":true,"text":"t"}': Drop.USER_NOT_TEXT,
    b'{"user":[["a"]],"text":"t"}': Drop.USER_NOT_TEXT,
    b'{"user":[],"text":"t"}': Drop.NO_USER_FIELD,
    b'{"user":null,"text":"t"}': Drop.NO_USER_FIELD, b'{"user":["a"],"text":"t"}': WHOLE,
    b'{"user":"a","text":7}': Drop.NOT_TEXT, b'{"user":"a","text":[]}': Drop.NOT_TEXT,
    b'{"user":"a","text":null}': Drop.NO_TEXT_FIELD,
}  # fmt: skip
"""Lines, and the record or the drop that each is; a byte-order mark may stand before the first."""


def outcomes(path, mark=b"") -> list[Drop | tuple[str, str]]:
    """What each odd line is, between others."""
    good = b'{"user": "good", "text": "words"}\n'
    found = []
    for line in ODD:
        path.write_bytes(mark + good + line + b"\n" + good)
        records, tally = read(path)
        assert tally.records_read == 3
        (one,) = pairs(records)[1:-1] or [Drop(reason) for reason in tally.drops]
        found.append(one)
    return found


def test_each_odd_line_is_a_record_or_a_drop_whatever_the_other_lines_are(tmp_path):
    assert outcomes(tmp_path / "a.jsonl", b"\xef\xbb\xbf") == [*ODD.values()]


def test_blank_text_judged_by_ascii_alone_is_caught(tmp_path, monkeypatch):
    def judged(value):
        wide = isinstance(value, str) and value.isspace() and value.strip(" \t\r\n")
        return value.encode() if wide else real(value)

    real = parsing.text_of
    monkeypatch.setattr(parsing, "text_of", judged)
    assert outcomes(tmp_path / "a.jsonl") != [*ODD.values()]


def refused(match: str, *paths, **options) -> UseError:
    with pytest.raises(UseError, match=match) as caught:
        read(*paths, **options)
    return caught.value


def test_plain_and_gzip_files_are_read_alike_whatever_their_names(tmp_path):
    plain = write_jsonl(tmp_path / "a.jsonl", GOOD)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "c.txt").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "d").write_bytes(plain.read_bytes())
    expected = [Record(r["user"].encode(), r["text"].encode()) for r in GOOD]
    for name in ("a.jsonl", "b.jsonl.gz", "c.txt", "d"):
        assert read(tmp_path / name)[0] == expected


def test_several_files_and_folders_are_read_in_order(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("b.jsonl", "a.jsonl", "folder/2.jsonl", "folder/1.jsonl"):
        write_jsonl(tmp_path / name, [{"user": "u", "text": name}])
    (tmp_path / "folder" / "README").write_text("not read")
    with pytest.warns(match="1 of the files in .* are not read"):
        records, _ = read(tmp_path / "b.jsonl", tmp_path / "folder", tmp_path / "[a].jsonl")
    assert [r.text.decode() for r in records] == [
        "b.jsonl", "folder/1.jsonl", "folder/2.jsonl", "a.jsonl"
    ]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), [("user", "author"), ("text", "body")])
def test_a_field_that_all_records_lack_is_refused_with_the_fields_there_are(
    tmp_path, option, value
):
    error = refused(value, write_jsonl(tmp_path / "a.jsonl", GOOD), **{option: value})
    assert "'user', 'text'" in error.message
    assert "--user" in (error.hint or "")


@pytest.mark.parametrize("keep", [1, 8, 15, 200, -9, -1])
def test_a_truncated_gzip_file_is_refused(tmp_path, keep):
    draw = random.Random(0)
    records = [{"user": "u", "text": str(draw.random())} for _ in range(3000)]
    whole = gzip.compress(write_jsonl(tmp_path / "a.jsonl", records).read_bytes())
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[:keep])
    with pytest.raises(UseError):
        read(path)


def test_a_kind_that_cannot_be_told_is_asked_for(tmp_path):
    (tmp_path / "a.xlsx").write_text("user,text\n")
    error = refused("cannot be told", tmp_path / "a.xlsx")
    assert all(kind in (error.hint or "") for kind in KINDS)
    with pytest.raises(UseError, match="no source is named 'xml'"):
        open_source([str(tmp_path / "a.csv")], kind="xml")
    with pytest.raises(UseError, match="no input"):
        open_source([])


REFUSED = {
    "nothing there": (None, "", {}, "nothing is there"),
    "nothing there, of a kind": (None, "", {"kind": "jsonl"}, "nothing is there"),
    "an empty folder": ("", "", {"kind": "jsonl"}, "holds no files of the kind jsonl"),
    "a binary file": ("a.jsonl", "\x7fELF\x02\0\0" + "\1\0" * 2500, {}, "binary file"),
    "prose": ("a.jsonl", "Once upon a time\nthere was no JSON.\n", {}, "no line is a JSON object"),
    "one JSON array": ("a.jsonl", '[\n{"user": "a", "text": "b"}\n]\n', {}, "one JSON array"),
    "several users, as LEAF": ("mail.jsonl", '{"users": ["a", "b"], "text": "x"}\n' * 2, {},
                               "no record has the field 'user'"),
    "a bound of private text": ("a.jsonl", '{"user": "a", "text": "b"}\n', {"max_users": 2},
                                "public sources"),
    "two columns of one name": ("a.csv", "user,text,text\na,b,c\n", {},
                                "2 columns named 'text'"),
    "no mbox": ("a.mbox", "just text", {"kind": "mbox"}, "is no mbox"),
    **{f"no LEAF: {text}": ("a.json", text, {"kind": "leaf"}, r"LEAF JSON|as JSON")
       for text in ("[]", "{}", '{"user_data": {"a": {"x": ["b"]}}}', "{")},
}  # fmt: skip
"""A file's name and content, the options, and what is said."""


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_words(tmp_path, case):
    name, content, options, match = REFUSED[case]
    if name:
        (tmp_path / name).write_text(content)
    refused(match, tmp_path / ("nowhere" if name is None else name), **options)
