"""`userdp.prepare` makes the same store of the same records, however a program holds them."""

import json

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import userdp
from tests.data.corpora import view
from tests.ledgers import reserve
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.ledger import StoreLedger

ROWS = [
    {"author": f"person {number % 5}", "message": f"words of record {number} " * 3, "kept": number}
    for number in range(40)
]
FIELDS = {"user": "author", "text": "message", "seq_len": 32}


TABLE = datasets.Dataset.from_list(ROWS)
FORMS = {
    "rows": lambda path: ROWS,
    "generator": lambda path: (row for row in ROWS),
    "datasets": lambda path: TABLE,
    "streamed": lambda path: TABLE.to_iterable_dataset(),
    "pandas": lambda path: pd.DataFrame(ROWS),
    "polars": lambda path: pl.DataFrame(ROWS),
    "arrow": lambda path: pa.Table.from_pylist(ROWS),
    "arrow reader": lambda path: pa.Table.from_pylist(ROWS).to_reader(),
    "duckdb": lambda path: duckdb.from_arrow(pa.Table.from_pylist(ROWS)),
    "path": lambda path: path,
    "paths": lambda path: [str(path)],
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_the_same_store_of_the_same_records(tmp_path, path, form):
    wanted = userdp.prepare(path, out=tmp_path / "wanted", **FIELDS)
    store = userdp.prepare(FORMS[form](path), out=str(tmp_path / "store"), **FIELDS)
    assert store.meta.totals["records_stored"] == len(ROWS)
    assert view(store) == view(wanted)


@pytest.fixture
def charged(tmp_path):
    """A store whose people were charged with a run."""
    store = userdp.prepare(ROWS, out=tmp_path / "store", **FIELDS)
    reserve(StoreLedger(store.path), "run", uls_plan(), logged=False)
    return store.path


def kinds(store):
    return {condition.kind for condition in claim(store).conditions}


def test_a_store_that_is_prepared_anew_keeps_its_ledger_and_is_no_copy(charged):
    userdp.prepare(ROWS[:9], out=charged, overwrite=True, **FIELDS)
    assert kinds(charged) == set()
    assert len(claim(charged).parts) == 1


def test_a_row_that_is_no_record_is_counted(tmp_path):
    rows = [*ROWS, {"author": "somebody"}, {"message": "nobody's"}, "no row"]
    assert sum(userdp.prepare(rows, out=tmp_path / "store", **FIELDS).meta.drops.values()) == 3


@pytest.mark.parametrize("make", [pd.DataFrame, datasets.Dataset.from_list, list])
def test_conversations_are_known_by_their_column(tmp_path, make):
    rows = [
        {"who": f"u{number % 3}", "messages": [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": f"Answer {number}."},
        ]}
        for number in range(12)
    ]  # fmt: skip
    store = userdp.prepare(make(rows), user="who", out=tmp_path / "store")
    assert store.meta.loss_mask
    assert store.meta.totals["records_stored"] == 12


@pytest.mark.parametrize("dtype", ["str", "category", "object"])
def test_generated_text_is_known_again_in_a_frame(tmp_path, dtype):
    written = pd.DataFrame(ROWS).assign(generated_by="userdp 0123").astype({"generated_by": dtype})
    store = userdp.prepare(written, out=tmp_path / "store", **FIELDS)
    assert store.meta.sources[0]["text_of_unknown_model"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (datasets.DatasetDict(train=TABLE, test=TABLE), "one table is prepared"),
        (3, "a int is no table"),
        (pd.DataFrame({"a": ["b"]}), "looked for the fields 'author', .*there: 'a'"),
        ([], "no input"),
    ],
)
def test_what_is_no_table_is_refused_and_leaves_nothing(tmp_path, data, said):
    with pytest.raises(userdp.UseError, match=said):
        userdp.prepare(data, out=tmp_path / "store", **FIELDS)
    assert not (tmp_path / "store").exists()
