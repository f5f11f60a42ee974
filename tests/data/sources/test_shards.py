"""A table read in pieces is the table read as a whole: rows, books, and what it is refused for."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.sources.test_one_path import ODD
from userdp.data.progress import NoProgress
from userdp.data.records import Tally
from userdp.data.sources import SourceOptions, conversations, jsonl, open_source
from userdp.data.sources.table import FileTable
from userdp.errors import UseError

LINES = b'{"user":"\xc3\xa9","text":"one"}\n\n{"user":"b","text":"two"}\r\n\xff\n{"user":"c"}\n'


def rows_of(tables: list[FileTable]) -> list[object]:
    return [row for one in tables for rows in one.rows(NoProgress()) for row in rows]


def outcome(tables: list[FileTable], whole: FileTable) -> object:
    """Records and books of tables read one after another as one, or what is said of them."""
    tally, records = Tally(), []
    for one in tables:
        mine = Tally()
        records += [record._replace(order=0) for record in one.part(mine, NoProgress())]
        tally.add(mine.facts())
    try:
        whole.require_fields(tally.records_read, tally.drops)
    except UseError as error:
        return error.message
    return records, tally.facts()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"", b"\n", b"x", b"\n\n"])
def test_lines_are_in_one_piece_wherever_a_file_is_cut(tmp_path, mark, end):
    path = tmp_path / "records.jsonl"
    path.write_bytes(mark + LINES + end)
    table = jsonl.build([str(path)], SourceOptions())
    for size in range(1, path.stat().st_size + 2):
        pieces = list(table.shards(size))
        assert len(pieces) == -(-path.stat().st_size // size)
        assert rows_of(pieces) == rows_of([table])


def test_twin_a_cut_at_the_byte_loses_lines(tmp_path, monkeypatch):
    """Without the skip of a line that began before: the same line would be read twice, in part."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(LINES)
    table = jsonl.build([str(path)], SourceOptions())
    monkeypatch.setattr(jsonl, "_part", lambda content, at: jsonl._blocks(content))
    assert rows_of(list(table.shards(10))) != rows_of([table])


def test_odd_lines_are_counted_alike(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(line for line in ODD if len(line) < 1000 and b"\0" not in line))
    table = jsonl.build([str(path)], SourceOptions())
    whole = outcome([table], table)
    for size in (1, 7, 64, 1000, 10**6):
        assert outcome(list(table.shards(size)), table) == whole


@pytest.mark.parametrize("lines", [[b'{"a":1}'] * 30 + [b'{"b":1}'] * 30, [b"[1]"] * 9, [], [b""]])
def test_a_field_that_no_piece_has_is_told_as_of_the_whole(tmp_path, lines):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\n".join(lines))
    table = jsonl.build([str(path)], SourceOptions())
    whole = outcome([table], table)
    for size in (8, 50, 300):
        assert outcome(list(table.shards(size)), table) == whole


def test_a_field_that_one_piece_has_is_there(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"x":1}\n' * 40 + b'{"user":"a"}\n' + b'{"text":"b"}\n')
    table = jsonl.build([str(path)], SourceOptions())
    records, facts = outcome(list(table.shards(8)), table)
    assert records == []
    assert facts["records_read"] == 42


def test_row_groups_of_parquet_are_read_apart(tmp_path):
    path = tmp_path / "records.parquet"
    held = [{"user": f"u{n % 7}", "text": f"text {n}"} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(held), path, row_group_size=9)
    (table,) = [open_source([str(path)])]
    for size in (1, 500, 10**9):
        assert rows_of(list(table.shards(size))) == rows_of([table])
    assert len(list(table.shards(1))) == 12


def test_what_is_compressed_or_damaged_is_one_piece(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b nothing")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nothing")
    for path in tmp_path.iterdir():
        table = open_source([str(path)], kind=path.name.split(".")[1])
        (piece,) = table.shards(1)
        said = []
        for one in (table, piece):
            with pytest.raises(UseError) as refused:
                rows_of([one])
            said.append(refused.value.message)
        assert said[0] == said[1]


def test_pieces_can_be_sent_to_another_process(tmp_path):
    path = tmp_path / "talk.jsonl"
    path.write_bytes(b'{"user":"a","prompt":"b","completion":"c"}\n' * 3)
    table = conversations.build([str(path)], SourceOptions(special_tokens=(("eos_token", "</s>"),)))
    (piece,) = table.shards(10**6)
    assert outcome([pickle.loads(pickle.dumps(piece))], table) == outcome([table], table)
