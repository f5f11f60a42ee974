"""A trainer's data set in the user store: its tokens, its masks, its drops and its ledger."""

import datasets
import pytest

from tests.huggingface.toy import examples, tokenized, toy_tokenizer
from tests.ledgers import reserve
from tests.plans import uls_plan
from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.ledger import StoreLedger
from userdp.training.huggingface.dataset import store_of


def stored(folder, table, *, seq_len=8):
    if isinstance(table, list):
        table = datasets.Dataset.from_list(table)
    how = {"user_column": "author", "text_column": "text", "seq_len": seq_len}
    words = toy_tokenizer(folder / "tokenizer")
    return store_of(table, folder / "people", processing_class=words, **how)


def row(author, ids, labels):
    return {"author": author, "input_ids": ids, "labels": labels}


def test_tokens_and_labels_go_into_the_store_as_they_are(tmp_path):
    table = [
        row("b", [5, 6, 7], [-100, 6, 7]),
        row("a", [*range(2, 12)], [-100] * 4 + [*range(6, 12)]),
        row("a", [9, 9, 0, 0], [9, 9, -100, -100]),
    ]
    store = stored(tmp_path, table)
    assert store.meta.loss_mask
    assert examples(store) == [
        (0, [2, 3, 4, 5, 6, 7, 8, 9], [-100] * 4 + [6, 7, 8, 9]),
        (0, [10, 11], [10, 11]),
        (0, [9, 9, 0, 0], [9, 9, -100, -100]),
        (1, [5, 6, 7], [-100, 6, 7]),
    ]


def test_invariant_10_every_row_is_stored_or_counted(tmp_path):
    good = row("a", [1, 2, 3], [1, 2, 3])
    bad = [{"author": None}, {"author": " "}, {"labels": [-100, -100, -100]}]
    bad += [{"input_ids": one} for one in ([1, 2, 900], None, [])]
    bad += [{"labels": [2, 3, 4]}, {"labels": [1, 2]}, {"input_ids": [1], "labels": [1]}]
    meta = stored(tmp_path, [good, *({**good, **one} for one in bad)]).meta
    assert meta.totals["records_read"] == 10
    assert meta.totals["records_stored"] == 1
    assert sum(meta.drops.values()) == 9
    assert meta.drops[str(Drop.BAD_TOKENS)] == 4
    assert meta.drops[str(Drop.NO_ANSWER)] == 1


def test_the_same_data_keeps_its_store_and_its_ledger_and_other_data_is_refused(tmp_path):
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    first = stored(tmp_path, table)
    reserve(StoreLedger(first.path), "some-run", uls_plan())
    before = sorted((tmp_path / "people").rglob("*"))
    again = stored(tmp_path, table)
    assert again.meta.store_id == first.meta.store_id
    assert len(StoreLedger(again.path).history().charges) == 1
    for other in ({"table": table.select(range(50))}, {"table": table, "seq_len": 4}):
        with pytest.raises(UseError, match="holds another data set"):
            stored(tmp_path, **other)
    assert stored(tmp_path, None).meta.content_sha256 == first.meta.content_sha256
    assert sorted((tmp_path / "people").rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people", "t", "tokenizer"]


def test_invariant_11_a_users_examples_depend_on_that_users_rows_alone(tmp_path):
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    names = sorted(set(table["author"]))
    every = examples(stored(tmp_path / "all", table))
    for mine, gone in enumerate(names[:2]):
        others = table.filter(lambda row, gone=gone: row["author"] != gone)
        left = examples(stored(tmp_path / gone, others))
        assert left == [(user - (user > mine), *rest) for user, *rest in every if user != mine]
