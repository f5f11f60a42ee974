"""CSV, Parquet, data sets: the same rows give the same records in every format."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import write_jsonl
from tests.data.sources.fixtures import EXPECTED, ROWS, pairs, read, write_csv, write_parquet
from userdp.core.errors import UseError
from userdp.data.records import Drop


def test_every_table_format_gives_the_same_records(tmp_path):
    files = [
        write_jsonl(tmp_path / "a.jsonl", ROWS),
        write_csv(tmp_path / "a.csv"),
        write_csv(tmp_path / "a.tsv", delimiter="\t"),
        write_parquet(tmp_path / "a.parquet"),
    ]
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    for file in [*files, tmp_path / "b.csv.gz"]:
        records, tally = read(file)
        assert pairs(records) == EXPECTED
        assert tally.records_read == 3


def test_a_date_holds_out_what_comes_on_or_after_it(tmp_path):
    for file in (write_jsonl(tmp_path / "a.jsonl", ROWS), write_parquet(tmp_path / "a.parquet")):
        records, _ = read(file, date="date", held_out_from="2018-01-01")
        assert [record.held_out for record in records] == [False, True, True]
    rows = [{**ROWS[0], "date": value} for value in (1514764799, 1514764800, "soon", None)]
    records, tally = read(
        write_jsonl(tmp_path / "b.jsonl", rows), date="date", held_out_from="2018-01-01"
    )
    assert [record.held_out for record in records] == [False, True]
    assert tally.drops == {str(Drop.NO_DATE): 2}
    with pytest.raises(UseError, match="go together"):
        read(tmp_path / "b.jsonl", held_out_from="2018-01-01")


def test_several_owners_are_named_once_each_in_their_order(tmp_path):
    rows = [{"user": ["ana", "ben", "ana"], "text": "x"}, {"user": ["ben"], "text": "y"}]
    for file in (
        write_jsonl(tmp_path / "a.jsonl", rows),
        write_parquet(tmp_path / "a.parquet", rows),
    ):
        records, _ = read(file)
        assert [record.owners for record in records] == [(b"ana", b"ben"), ()]


@pytest.mark.parametrize(
    ("column", "kind"),
    [("text", pa.float64()), ("user", pa.bool_())],
)
def test_a_parquet_column_of_a_useless_type_is_refused(tmp_path, column, kind):
    arrays = {"user": pa.array(["a"]), "text": pa.array(["b"]), column: pa.nulls(1, kind)}
    pq.write_table(pa.table(arrays), tmp_path / "a.parquet")
    with pytest.raises(UseError, match=f"column '{column}'"):
        read(tmp_path / "a.parquet")


def test_parquet_dictionaries_bytes_nulls_and_bad_utf8_are_read_or_counted(tmp_path):
    user = pa.array(["a", None, "b", "c"]).dictionary_encode()
    text = pa.array([b"x", b"y", b"\xff", None], pa.binary())
    pq.write_table(pa.table({"user": user, "text": text}), tmp_path / "a.parquet")
    records, tally = read(tmp_path / "a.parquet")
    assert pairs(records) == [("a", "x")]
    assert tally.drops == {
        str(Drop.NO_USER_FIELD): 1, str(Drop.INVALID_UTF8): 1, str(Drop.NO_TEXT_FIELD): 1
    }  # fmt: skip


def test_csv_rows_that_cannot_be_used_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfuser,text\r\na,x\r\n\r\nb,\r\n,y\r\nc,\xff\r\nd,z\r\n")
    records, tally = read(path)
    assert pairs(records) == [("a", "x"), ("d", "z")]
    assert tally.drops == {
        str(Drop.BLANK_LINE): 1, str(Drop.EMPTY_TEXT): 1, str(Drop.NO_USER): 1,
        str(Drop.INVALID_UTF8): 1,
    }  # fmt: skip


def test_saved_hugging_face_data_sets_are_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=data).save_to_disk(tmp_path / "dict")
    assert pairs(read(tmp_path / "one")[0]) == pairs(read(tmp_path / "dict")[0]) == EXPECTED
    with pytest.raises(UseError, match="no split 'test'"):
        read(tmp_path / "dict", dataset_split="test")
    (tmp_path / "none").mkdir()
    with pytest.raises(UseError, match="cannot be read"):
        read(tmp_path / "none", kind="hf")
