"""JSON Lines: any line is read or counted; a file that is none is refused at once."""

from __future__ import annotations

import gzip
import random
import zipfile

import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import ODD_LINES, pairs, read, write_parquet
from userdp.core.errors import UseError
from userdp.data.records import Drop, Record
from userdp.data.sources import KINDS, open_source, parsing

GOOD = [{"user": f"u{n % 3}", "text": f"record {n}"} for n in range(50)]


def outcomes(path, mark=b"") -> list[Drop | tuple[str, str]]:
    """What each odd line is, between others."""
    good = b'{"user": "good", "text": "words"}\n'
    found = []
    for line in ODD_LINES:
        path.write_bytes(mark + good + line + b"\n" + good)
        records, tally = read(path)
        assert tally.records_read == 3
        (one,) = pairs(records)[1:-1] or [Drop(reason) for reason in tally.drops]
        found.append(one)
    return found


def test_each_odd_line_is_a_record_or_a_drop_whatever_the_other_lines_are(tmp_path):
    assert outcomes(tmp_path / "a.jsonl", b"\xef\xbb\xbf") == [*ODD_LINES.values()]


def test_blank_text_judged_by_ascii_alone_is_caught(tmp_path, monkeypatch):
    def judged(value):
        wide = isinstance(value, str) and value.isspace() and value.strip(" \t\r\n")
        return value.encode() if wide else real(value)

    real = parsing.text_of
    monkeypatch.setattr(parsing, "text_of", judged)
    assert outcomes(tmp_path / "a.jsonl") != [*ODD_LINES.values()]


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


def write_zip(path, rows):
    with zipfile.ZipFile(path, "w") as archive:
        for number, row in enumerate(rows):
            archive.writestr(f"ana/{number}.txt", row["text"])


def write_gzip(path, rows):
    path.write_bytes(gzip.compress(write_jsonl(path, rows).read_bytes()))


@pytest.mark.parametrize("keep", [2, 8, 15, 200, 0.5, -40, -9, -1])
@pytest.mark.parametrize(
    ("name", "write"),
    [("a.jsonl.gz", write_gzip), ("a.parquet", write_parquet), ("a.zip", write_zip)],
)
def test_a_file_that_was_cut_short_is_refused(tmp_path, name, write, keep):
    draw = random.Random(0)
    write(tmp_path / name, [{"user": "u", "text": str(draw.random())} for _ in range(3000)])
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: keep if isinstance(keep, int) else len(whole) // 2])
    with pytest.raises(UseError):
        read(tmp_path / name)


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
    "one JSON array": ("a.jsonl", '[\n{"user": "a", "text": "b"}\n]\n', {}, "one JSON array"),
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
