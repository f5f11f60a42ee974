"""Erasing: the store is the one that would have been prepared without the person."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from tests.data.corpora import (
    ListSource,
    corpus,
    examples_of,
    interleaved,
    prepared,
    problems_of,
    view,
)
from userdp.core.errors import UseError
from userdp.core.files import exclusive
from userdp.data import meta as layout
from userdp.data.meta import StateKind
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.records import Record, Tally
from userdp.data.splits import Split
from userdp.data.store_folder import changing, remember, remembered
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter, erase_user


def erase(path, user, **options):
    row = UserStore.open(path).user_ids().index(user)
    with changing(path):
        return erase_user(path, row, **{"remove": (), **options})


def without(texts, user):
    return {name: held for name, held in texts.items() if name != user}


def bytes_of(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("place", [0, 7, 14])
def test_an_erased_store_is_the_store_prepared_without_the_person(tmp_path, place):
    texts = corpus(15, seed=5)
    user = sorted(texts)[place]
    store = prepared(texts, tmp_path / "store")
    bare = prepared(without(texts, user), tmp_path / "bare")
    meta = erase(store.path, user)
    now = UserStore.open(store.path)
    assert view(now) == view(bare)
    assert meta.content_sha256 == bare.meta.content_sha256
    assert meta.totals == bare.meta.totals
    assert not problems_of(store.path)
    assert (meta.store_id, meta.state.kind) == (store.meta.store_id, StateKind.ERASED)


def test_an_erasure_that_keeps_the_text_is_caught(tmp_path, monkeypatch):
    """The twin: the table forgets the person, and the files of tokens do not."""
    store = prepared(corpus(5), tmp_path / "store", held_out_users=0)
    take_over = StoreWriter._take_over

    def with_their_text(self, end):
        take_over(self, 3 if end == 2 else end)
        if end == 2:
            self._rows.pop()
            self._next = 2

    with monkeypatch.context() as broken:
        broken.setattr(StoreWriter, "_take_over", with_their_text)
        erase(store.path, b"user002")
    with pytest.raises(UseError, match="another length"):
        problems_of(store.path)


def test_no_file_of_the_store_holds_the_id_the_hash_or_the_tokens(tmp_path):
    texts = {**corpus(5), b"marked-person": ["planted 日本 planted 日本 marker"]}
    store = prepared(texts, tmp_path / "store", held_out_users=0)
    row = store.user_ids().index(b"marked-person")
    marks = [
        b"marked-person",
        store.split(Split.TRAIN).gather([row], [0]).tokens.tobytes(),
        store.table["hash"][row].as_py(),
        store.table["train chain"][row].as_py(),
    ]
    held = bytes_of(store.path).values()
    assert all(any(mark in data for data in held) for mark in marks)
    erase(store.path, b"marked-person")
    held = bytes_of(store.path).values()
    assert not any(mark in data for data in held for mark in marks)


def test_erasing_after_appends_and_appending_after_erasing(tmp_path):
    texts = corpus(12, seed=2)
    user, late = sorted(texts)[3], {b"late": ["one more text", "and one"], **corpus(4, seed=2)}
    store = prepared(texts, tmp_path / "store")
    append_records(ListSource(interleaved(late)), store.path)
    erase(store.path, user)
    erase(store.path, b"late")
    meta = append_records(ListSource(interleaved({b"later": ["a text"]})), store.path)
    whole = {name: held + late.get(name, []) for name, held in texts.items()}
    bare = prepared({**without(whole, user), b"later": ["a text"]}, tmp_path / "bare")
    assert meta.content_sha256 == bare.meta.content_sha256
    assert meta.totals == bare.meta.totals
    assert not problems_of(store.path)
    assert [state.kind for state in meta.states] == [
        StateKind.PREPARED, StateKind.APPENDED, *[StateKind.ERASED] * 2, StateKind.APPENDED,
    ]  # fmt: skip
    now = UserStore.open(store.path)
    joined = dict(zip(now.user_ids(), now.joined().tolist(), strict=True))
    assert joined == {**dict.fromkeys(joined, 0), b"later": 4}


def test_a_loss_mask_is_compacted_with_the_tokens(tmp_path):
    texts = {b"a": 1, b"b": 2, b"c": 3}
    stores = []
    for name, people in (("store", texts), ("bare", without(texts, b"b"))):
        words = StoreTokenizer.load()
        with StoreWriter.create(tmp_path / name, tokenizer=words, seq_len=8, loss_mask=True) as new:
            for user, size in people.items():
                marks = np.arange(4, dtype=np.uint8) % 2
                for _ in range(size):
                    tokens, lengths = np.arange(4) + size, np.array([4])
                    new.write(user, Split.TRAIN, tokens, lengths, targets=marks, records=1)
            new.finish(source={}, tally=Tally())
        stores.append(tmp_path / name)
    assert erase(stores[0], b"b").content_sha256 == UserStore.open(stores[1]).meta.content_sha256
    assert not problems_of(stores[0])


def killed(*arguments, **options):
    raise KeyboardInterrupt


def test_the_next_opening_deletes_what_a_killed_erasure_left(tmp_path, monkeypatch):
    texts = corpus(8, seed=6)
    user = sorted(texts)[2]
    store = prepared(texts, tmp_path / "store")
    bare = prepared(without(texts, user), tmp_path / "bare")
    with monkeypatch.context() as patch:
        patch.setattr("userdp.data.store_folder.clear", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(store.path, user)
    assert json.loads((store.path / layout.META).read_text())["totals"]["users"] == 7
    with exclusive(store.path, refusal=UseError("held")):  # readers leave the person there now
        assert view(UserStore.open(store.path)) == view(bare)
        assert any(user in data for data in bytes_of(store.path).values())
    assert view(UserStore.open(store.path)) == view(bare)
    assert not problems_of(store.path)
    assert not any(user in data for data in bytes_of(store.path).values())


def test_an_erasure_that_was_killed_before_it_counts_is_none_and_can_be_had_again(
    tmp_path, monkeypatch
):
    store = prepared(corpus(5), tmp_path / "store")
    weights, before = tmp_path / "run" / "model", view(store)
    weights.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr("userdp.data.writer.StoreWriter._commit", killed)
        with pytest.raises(KeyboardInterrupt):
            erase(store.path, b"user001", remove=[weights])
    assert view(UserStore.open(store.path)) == before
    assert not problems_of(store.path)
    meta = erase(store.path, b"user001", remove=[weights])
    assert not weights.exists()
    assert meta.totals["users"] == 4
    assert not problems_of(store.path)
    assert [one.name for one in (store.path / layout.GENERATIONS).iterdir()] == ["00001"]


def test_greedy_ownership_is_not_decided_anew(tmp_path):
    """A record that was dropped because of the person stays dropped; the others keep theirs."""
    graph = [[b"ann", b"bob"], [b"ann"], [b"ann", b"cid"], [b"bob", b"ann"], [b"cid"]]
    records = [
        Record(owners[0], b"some text of record %d" % n, owners=tuple(owners))
        for n, owners in enumerate(graph)
    ]
    prepare_store(
        ListSource(tuple(records), several_owners=True), tmp_path / "s",
        tokenizer=StoreTokenizer.load(), records_per_user=2,
        held_out_users=0, held_out_examples=0,
    )  # fmt: skip
    store = UserStore.open(tmp_path / "s", fixed_graph=True)
    assert store.user_ids() == [b"ann", b"cid"], "ann's other records were over her bound"
    kept = examples_of(store, b"cid")
    with changing(store.path):
        meta = erase_user(store.path, 0, remove=())
    now = UserStore.open(store.path, fixed_graph=True)
    assert [now.user_ids(), examples_of(now, b"cid")] == [[b"cid"], kept]
    assert meta.ownership == store.meta.ownership
    assert not problems_of(store.path)


def test_a_place_that_no_reader_would_take_is_refused_before_anything_is_noted(tmp_path):
    """Its line would be damage to every later reader: nobody could train or be erased any more."""
    remember(tmp_path, tmp_path / "run")
    other = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    with pytest.raises(UseError, match="UTF-8"):
        remember(tmp_path, other)
    assert remembered(tmp_path) == [tmp_path / "run"]
