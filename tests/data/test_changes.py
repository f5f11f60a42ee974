"""Changes of a store: any row of them ends in the store prepared at once, or leaves the old one."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from tests.data.corpora import (
    WORDS,
    ListSource,
    corpus,
    examples_of,
    interleaved,
    prepared,
    problems_of,
    view,
)
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.core.files import exclusive
from userdp.data import store_meta as layout
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.records import TARGET, Record, Tally
from userdp.data.splits import Split
from userdp.data.store_folder import changing, remember, remembered
from userdp.data.store_meta import StateKind
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter, erase_user
from userdp.ledger.run_folder import LEDGER

OPTIONS = {"seq_len": 8, "held_out_users": 0.2, "held_out_examples": 0.2}


def append(path, texts):
    return append_records(ListSource(interleaved(texts)), path)


def erase(path, user, **options):
    row = UserStore.open(path).user_ids().index(user)
    with changing(path):
        return erase_user(path, row, **{"remove": (), **options})


def bytes_of(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def end_of_a_life(seed, folder, *, loss_mask=False):
    """A store after some appends and erasures in turn, and that of the same records at once."""
    draw, kept, joined, kinds = random.Random(seed), {}, {}, []
    source = lambda records: ListSource(records, loss_mask=loss_mask)  # noqa: E731
    words, path = StoreTokenizer.load(), folder / "store"
    for number in range(7):
        if len(kept) > 1 and draw.random() < 0.4:
            gone = draw.choice(sorted(kept))
            erase(path, gone)
            del kept[gone], joined[gone]
            kinds.append(StateKind.ERASED)
            continue
        new = []
        for user in (b"u%02d" % draw.randrange(20) for _ in range(draw.choice([1, 12, 40]))):
            text = " ".join(draw.choices(WORDS, k=draw.randrange(1, 30)))
            pieces = ((len(text) // 2, 0), (len(text), TARGET)) if loss_mask else None
            new.append(Record(user, text.encode(), pieces=pieces))
            kept.setdefault(user, []).append(new[-1])
            joined.setdefault(user, number)
        kinds.append(StateKind.APPENDED if number else StateKind.PREPARED)
        if number:
            append_records(source(new), path)
        else:
            prepare_store(source(new), path, tokenizer=words, **OPTIONS)
    records = [record for user in kept.values() for record in user]
    prepare_store(source(records), folder / "whole", tokenizer=words, **OPTIONS)
    store, whole = UserStore.open(path), UserStore.open(folder / "whole")
    assert [state.kind for state in store.meta.states] == kinds
    assert len(store.meta.sources) == len(kinds) - kinds.count(StateKind.ERASED)
    assert dict(zip(store.user_ids(), store.joined().tolist(), strict=True)) == joined
    assert [one.name for one in (path / layout.GENERATIONS).iterdir()] == ["00006"]
    return store, whole


@pytest.mark.parametrize("loss_mask", [False, True])
@pytest.mark.parametrize("seed", fast_then_slow(range(2)))
def test_any_life_of_a_store_ends_in_the_store_prepared_at_once(tmp_path, seed, loss_mask):
    store, whole = end_of_a_life(seed, tmp_path, loss_mask=loss_mask)
    assert view(store) == view(whole)
    assert store.meta.content_sha256 == whole.meta.content_sha256
    assert store.meta.totals == whole.meta.totals
    assert not problems_of(store.path)


def test_records_split_by_number_among_the_new_ones_alone_are_caught(tmp_path, monkeypatch):
    """The twin: an append that forgets how many records a user has splits them otherwise."""
    monkeypatch.setattr("userdp.data.writer.StoreWriter.records_of", lambda self, user: 0)
    store, whole = end_of_a_life(1, tmp_path)
    assert store.meta.content_sha256 != whole.meta.content_sha256


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


@pytest.mark.parametrize("change", ["append", "overwrite"])
def test_readers_go_on_with_what_they_opened(tmp_path, change):
    store = prepared(corpus(20, seed=1), tmp_path / "store")
    seen, id_before = view(store), store.meta.store_id
    if change == "append":
        append(store.path, corpus(25, seed=2))
    else:
        prepared(corpus(9, seed=3), store.path, overwrite=True)
    assert view(store) == seen
    assert UserStore.open(store.path).meta.store_id != id_before


def test_one_appender_at_a_time(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    with StoreWriter.append(store.path), pytest.raises(UseError, match="another process appends"):
        StoreWriter.append(store.path).__enter__()


def test_nothing_to_append_is_bad_use_and_changes_nothing(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    before = bytes_of(store.path)
    with pytest.raises(UseError, match="nothing to store"):
        append(store.path, {})
    assert bytes_of(store.path) == before
    with pytest.raises(UseError, match="nothing is there"):
        append(tmp_path / "nowhere", {})


def killed(*arguments, **options):
    raise KeyboardInterrupt


def test_the_next_opening_deletes_what_a_killed_erasure_left(tmp_path, monkeypatch):
    texts = corpus(8, seed=6)
    user, store = sorted(texts)[2], prepared(texts, tmp_path / "store")
    bare = prepared({u: t for u, t in texts.items() if u != user}, tmp_path / "bare")
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
    with pytest.raises(UnicodeEncodeError):
        remember(tmp_path, Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff")))
    assert remembered(tmp_path) == [tmp_path / "run"]


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
    ledger = prepared(corpus(2), tmp_path / "store").path / LEDGER
    ledger.write_text("one\n")
    with ledger.open("a") as running:  # a run that has the ledger open goes on writing
        prepared(corpus(3), tmp_path / "store", overwrite=True)
        running.write("two\n")
    assert ledger.read_text() == "one\ntwo\n"
