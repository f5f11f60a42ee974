"""Generated text is known as such in every format that has fields, and in any mixture."""

from __future__ import annotations

import gzip
import json
import shutil

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.data.corpora import write_jsonl
from tests.words import write_tokenizer
from userdp.claims.lineage import Lineage
from userdp.data.pipeline import prepare_store
from userdp.data.sources import SourceOptions, open_source
from userdp.data.sources.input_files import GENERATED
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.ledger.charged_parts import Query

MODEL = "userdp 1"
PLAIN = pa.table({"user": ["ana", "ben"], "text": ["w1 w2", "w3"]})
MIXED = PLAIN.append_column(GENERATED, pa.array([None, MODEL]))  # not the first


def jsonl(table, path):
    write_jsonl(
        path, [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    )


def dataset(table, path):
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is not installed")
    datasets.Dataset(table).save_to_disk(path)


WRITERS = {
    "text.jsonl": jsonl,
    "text.csv": pyarrow.csv.write_csv,
    "text.parquet": pyarrow.parquet.write_table,
    "text-saved": dataset,
}


def facts(path, store):
    """What the store says of where its newest text is from."""
    source = open_source([str(path)], options=SourceOptions())
    tokenizer = StoreTokenizer.load(write_tokenizer(path.parent / "tokenizer.json"))
    meta = prepare_store(source, store, tokenizer=tokenizer, seq_len=8, held_out_users=0)
    told = meta.sources[-1]
    return told.get("text_of_unknown_model"), told.get("text_lineage")


@pytest.mark.parametrize("name", WRITERS)
def test_invariant_13_generated_text_is_known_in_every_format_and_mixture(tmp_path, name):
    WRITERS[name](PLAIN, tmp_path / name)
    assert facts(tmp_path / name, tmp_path / "plain") == (None, None)
    if (tmp_path / name).is_dir():
        shutil.rmtree(tmp_path / name)
    WRITERS[name](MIXED, tmp_path / name)
    assert facts(tmp_path / name, tmp_path / "lost") == (True, None)
    lineage = Lineage(parts=(Query(id="q", name="users", pure_epsilon=0.5),)).plain
    beside = tmp_path / f"{name}.provenance.json"
    beside.write_text(json.dumps({"lineage": lineage, GENERATED: MODEL}))
    assert facts(tmp_path / name, tmp_path / "told") == (None, [lineage])
    beside.write_text(json.dumps({"lineage": lineage, GENERATED: "userdp 2"}))
    assert facts(tmp_path / name, tmp_path / "other") == (True, [lineage])


def test_a_file_that_was_unpacked_keeps_what_lies_beside_it(tmp_path):
    jsonl(PLAIN, tmp_path / "clean.jsonl")
    (tmp_path / "clean.jsonl.gz").write_bytes(
        gzip.compress((tmp_path / "clean.jsonl").read_bytes())
    )
    told = {"private_data": "a store"}
    (tmp_path / "clean.jsonl.gz.provenance.json").write_text(json.dumps(told))
    for name in ("clean.jsonl", "clean.jsonl.gz"):
        source = open_source([str(tmp_path / name)], options=SourceOptions())
        assert source.facts["filtered_against_private"] == [told]


def test_the_provenance_of_every_file_is_the_sources(tmp_path):
    """A lineage that another file's overwrote would be missing from the claim."""
    for number, name in enumerate(("text.jsonl", "text.csv")):
        WRITERS[name](PLAIN, tmp_path / name)
        told = {"lineage": {"number": number}, GENERATED: str(number)}
        (tmp_path / f"{name}.provenance.json").write_text(json.dumps(told))
    facts = open_source([str(tmp_path / name) for name in ("text.jsonl", "text.csv")]).facts
    assert facts["text_lineage"] == [{"number": 0}, {"number": 1}]
    assert facts["text_written_by"] == ["0", "1"]
