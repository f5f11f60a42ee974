"""Appending: the same store as one prepared at once; readers are undisturbed."""

from __future__ import annotations

import random

import pytest

from tests.data.corpora import ListSource, corpus, interleaved, prepared, problems_of, view
from userdp.core.errors import UseError
from userdp.data import meta as layout
from userdp.data.pipeline import append_records
from userdp.data.records import Record
from userdp.data.user_store import UserStore
from userdp.data.writer import StoreWriter


def halves(texts, seed=0):
    """Each user's records cut in two at a random place; some users are in one part alone."""
    draw = random.Random(seed)
    first, second = {}, {}
    for user, held in texts.items():
        cut = draw.randint(0, len(held))
        first |= {user: held[:cut]} if cut else {}
        second |= {user: held[cut:]} if cut < len(held) else {}
    return first, second


def append(path, texts):
    return append_records(ListSource(interleaved(texts)), path)


def test_a_store_appended_to_is_the_store_prepared_at_once(tmp_path):
    texts = corpus(40, seed=3)
    first, second = halves(texts)
    whole = prepared(texts, tmp_path / "whole")
    parts = prepared(first, tmp_path / "parts")
    old = parts.meta
    meta = append(parts.path, second)
    parts = UserStore.open(parts.path)
    assert view(parts) == view(whole)
    assert meta.totals == whole.meta.totals
    assert meta.content_sha256 == whole.meta.content_sha256
    assert (meta.store_id, meta.generation) != (old.store_id, old.generation)
    assert not problems_of(parts.path)


def test_records_split_by_number_among_the_new_ones_alone_would_be_caught(tmp_path, monkeypatch):
    """The twin: an append that forgets how many records a user has splits them otherwise."""
    texts = corpus(40, seed=3)
    first, second = halves(texts)
    whole = prepared(texts, tmp_path / "whole")
    parts = prepared(first, tmp_path / "parts")
    monkeypatch.setattr("userdp.data.writer.StoreWriter.records_of", lambda self, user: 0)
    append(parts.path, second)
    assert view(UserStore.open(parts.path)) != view(whole)


def test_old_readers_go_on_and_one_generation_is_left(tmp_path):
    texts = corpus(20, seed=1)
    first, second = halves(texts)
    store = prepared(first, tmp_path / "store")
    seen = view(store)
    for number in range(3):
        late = {b"late%d" % number: ["one more text"]}
        append(store.path, late if number else late | second)
    assert view(store) == seen
    assert len(list((store.path / layout.GENERATIONS).iterdir())) == 1
    assert len(UserStore.open(store.path).meta.states) == 4


def test_drops_and_sources_add_up(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    meta = append_records(ListSource((Record(b"z", b"new text"),)), store.path)
    assert meta.totals["records_read"] == store.meta.totals["records_read"] + 1
    assert [source["kind"] for source in meta.sources] == ["list", "list"]
    assert meta.totals["users"] == 6


def test_one_appender_at_a_time(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    with StoreWriter.append(store.path), pytest.raises(UseError, match="another process appends"):
        StoreWriter.append(store.path).__enter__()


def test_nothing_to_append_is_bad_use_and_changes_nothing(tmp_path):
    store = prepared(corpus(5), tmp_path / "store")
    before = sorted(str(path) for path in store.path.rglob("*"))
    with pytest.raises(UseError, match="nothing to store"):
        append_records(ListSource(()), store.path)
    assert sorted(str(path) for path in store.path.rglob("*")) == before
    with pytest.raises(UseError, match="nothing is there"):
        append_records(ListSource(()), tmp_path / "nowhere")
