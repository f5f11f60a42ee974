"""A trainer's data set in the user store: its tokens, its masks, its drops and its ledger."""

from pathlib import Path

import datasets
import numpy as np
import pytest

from tests.huggingface.toy import rows, tokenized, toy_tokenizer
from tests.ledgers import reserve
from tests.plans import uls_plan
from userdp.core.errors import UseError
from userdp.data.records import Drop
from userdp.data.splits import Split
from userdp.ledger import StoreLedger
from userdp.training.huggingface.dataset import store_of


def stored(folder, table, **changes):
    options = {
        "processing_class": toy_tokenizer(folder / "tokenizer"),
        "user_column": "author",
        "text_column": "text",
        "seq_len": 8,
    }
    return store_of(table, folder / "people", **{**options, **changes})


def examples(store):
    """(user, tokens, marks) of each training example, in the store's order."""
    split = store.split(Split.TRAIN)
    found = []
    for user, count in enumerate(split.counts.tolist()):
        rows = split.gather(np.full(count, user), np.arange(count))
        for begin, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
            marks = None if rows.targets is None else rows.targets[begin:end].astype(int).tolist()
            found.append((user, rows.tokens[begin:end].tolist(), marks))
    return found


def test_tokens_and_labels_go_into_the_store_as_they_are(tmp_path):
    table = datasets.Dataset.from_list(
        [
            {"author": "b", "input_ids": [5, 6, 7], "labels": [-100, 6, 7]},
            {
                "author": "a",
                "input_ids": list(range(2, 12)),
                "labels": [-100] * 4 + [*range(6, 12)],
            },
            {"author": "a", "input_ids": [9, 9, 0, 0], "labels": [9, 9, -100, -100]},
        ]
    )
    store = stored(tmp_path, table)
    assert store.meta.loss_mask
    assert examples(store) == [
        (0, [2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 0, 1, 1, 1, 1]),
        (0, [10, 11], [1, 1]),
        (0, [9, 9, 0, 0], [1, 1, 0, 0]),
        (1, [5, 6, 7], [0, 1, 1]),
    ]


def test_invariant_10_every_row_is_stored_or_counted(tmp_path):
    good = {"author": "a", "input_ids": [1, 2, 3], "labels": [1, 2, 3]}
    table = datasets.Dataset.from_list(
        [
            good,
            {**good, "author": None},
            {**good, "author": " "},
            {**good, "input_ids": [1, 2, 900]},
            {**good, "input_ids": None},
            {**good, "input_ids": []},
            {**good, "labels": [2, 3, 4]},
            {**good, "labels": [1, 2]},
            {**good, "labels": [-100, -100, -100]},
            {**good, "input_ids": [1], "labels": [1]},
        ]
    )
    meta = stored(tmp_path, table).meta
    assert meta.totals["records_read"] == 10
    assert meta.totals["records_stored"] == 1
    assert sum(meta.drops.values()) == 9
    assert meta.drops[str(Drop.BAD_TOKENS)] == 4
    assert meta.drops[str(Drop.NO_ANSWER)] == 1


def test_the_same_data_keeps_its_store_and_its_ledger(tmp_path):
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    first = stored(tmp_path, table)
    reserve(StoreLedger(first.path), "some-run", uls_plan())
    before = sorted((tmp_path / "people").rglob("*"))
    again = stored(tmp_path, table)
    assert again.meta.store_id == first.meta.store_id
    assert len(StoreLedger(again.path).charges()) == 1
    assert sorted((tmp_path / "people").rglob("*")) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people", "t", "tokenizer"]


@pytest.mark.parametrize("change", ["rows", "seq_len"])
def test_other_data_at_the_same_place_is_refused(tmp_path, change):
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    store = stored(tmp_path, table)
    other = {"rows": {"table": table.select(range(50))}, "seq_len": {"seq_len": 4}}[change]
    with pytest.raises(UseError, match="holds another data set"):
        stored(tmp_path, **{"table": table, **other})
    assert stored(tmp_path, None).meta.content_sha256 == store.meta.content_sha256


def test_invariant_11_a_users_examples_depend_on_that_users_rows_alone(tmp_path):
    table = datasets.Dataset.from_list(rows())
    tokenizer = toy_tokenizer(Path(tmp_path) / "t")
    table = table.map(lambda row: {"input_ids": tokenizer(row["text"])["input_ids"]})
    names = sorted(set(table["author"]))
    every = examples(stored(tmp_path / "all", table))
    for gone in names[:2]:
        others = table.filter(lambda row, gone=gone: row["author"] != gone)
        left = examples(stored(tmp_path / gone, others))
        mine = names.index(gone)
        expected = [(user - (user > mine), *rest) for user, *rest in every if user != mine]
        assert left == expected
