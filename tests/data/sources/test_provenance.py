"""Generated text is known as such in every format that has fields."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from userdp.claim.lineage import Lineage, Query
from userdp.data.sources import SourceOptions, open_source
from userdp.data.sources.provenance import GENERATED

_BY = ["userdp 1", "userdp 1"]
ROWS = pa.table({"user": ["ana", "ben"], "text": ["one", "two"], GENERATED: _BY})


def jsonl(table, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def dataset(table, path):
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    datasets.Dataset(table).save_to_disk(path)


WRITERS = {
    "text.jsonl": jsonl,
    "text.csv": pyarrow.csv.write_csv,
    "text.parquet": pyarrow.parquet.write_table,
    "text-saved": dataset,
}


@pytest.mark.parametrize("name", WRITERS)
def test_invariant_13_generated_text_is_known_in_every_format(tmp_path, name):
    def facts():
        told = open_source([str(tmp_path / name)], options=SourceOptions()).facts()
        return told.get("text_of_unknown_model"), told.get("text_lineage")

    WRITERS[name](ROWS, tmp_path / name)
    assert facts() == (True, None)
    lineage = Lineage(parts=(Query(id="q", name="users", pure_epsilon=0.5),)).plain
    (tmp_path / f"{name}.provenance.json").write_text(json.dumps({"lineage": lineage}))
    assert facts() == (None, [lineage])


@pytest.mark.parametrize("name", WRITERS)
def test_text_that_nobody_generated_says_nothing(tmp_path, name):
    WRITERS[name](ROWS.drop_columns([GENERATED]), tmp_path / name)
    told = open_source([str(tmp_path / name)], options=SourceOptions()).facts()
    assert not {"text_of_unknown_model", "text_lineage"} & told.keys()
