"""JSON Lines: any line is read or counted; a file that is none is refused at once."""

from __future__ import annotations

import gzip
import random
import zipfile

import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import ODD_LINES, pairs, read, write_parquet
from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.sources import KINDS, open_source, rows_to_records

GOOD = [{"user": f"u{n % 3}", "text": f"record {n}"} for n in range(50)]


def outcomes(path, mark=b"") -> list[Drop | tuple[str, str]]:
    """What each odd line is, between others."""
    good, found = b'{"user": "good", "text": "words"}\n', []
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

    real = rows_to_records.text_of
    monkeypatch.setattr(rows_to_records, "text_of", judged)
    assert outcomes(tmp_path / "a.jsonl") != [*ODD_LINES.values()]


def refused(match: str, *paths, **options) -> UseError:
    with pytest.raises(UseError, match=match) as caught:
        read(*paths, **options)
    return caught.value


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
