"""Writing: the whole store or none, and never in the place of something else."""

from __future__ import annotations

import pytest

from tests.data.corpora import corpus, prepared
from userdp.core.errors import UseError
from userdp.data import meta as layout
from userdp.data.records import Tally
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter


def test_leaving_the_block_early_removes_everything(tmp_path):
    with (
        pytest.raises(RuntimeError, match="stop"),
        StoreWriter.create(tmp_path / "store", tokenizer=StoreTokenizer.load(), seq_len=4),
    ):
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_the_second_to_finish_is_refused_and_harms_nothing(tmp_path):
    writing = StoreWriter.create(tmp_path / "store", tokenizer=StoreTokenizer.load(), seq_len=4)
    second = writing.__enter__()
    first = prepared(corpus(2), tmp_path / "store")
    second.finish(source={}, tally=Tally())
    with pytest.raises(UseError, match="there is a store at"):
        writing.__exit__(None, None, None)
    assert UserStore.open(tmp_path / "store").meta.store_id == first.meta.store_id
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_only_a_store_is_overwritten_and_only_when_asked(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("years of work")
    with pytest.raises(UseError, match="not a user store"):
        prepared(corpus(2), tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter1").read_text() == "years of work"
    old = prepared(corpus(2), tmp_path / "store")
    with pytest.raises(UseError, match="there is a store at"):
        prepared(corpus(3), tmp_path / "store")
    assert UserStore.open(old.path).meta.store_id == old.meta.store_id
    assert prepared(corpus(3), tmp_path / "store", overwrite=True).users == 3


def test_overwriting_keeps_the_privacy_ledger_as_the_same_file(tmp_path):
    store = prepared(corpus(2), tmp_path / "store")
    ledger = store.path / layout.LEDGER
    ledger.write_text("one\n")
    with ledger.open("a") as running:  # a run that has the ledger open goes on writing
        prepared(corpus(3), tmp_path / "store", overwrite=True)
        running.write("two\n")
    assert ledger.read_text() == "one\ntwo\n"


def test_readers_of_an_overwritten_store_keep_what_they_opened(tmp_path):
    store = prepared(corpus(2), tmp_path / "store")
    before = store.split("train").gather([0], [0]).tokens.tolist()
    prepared(corpus(9, seed=3), tmp_path / "store", overwrite=True)
    assert store.split("train").gather([0], [0]).tokens.tolist() == before
