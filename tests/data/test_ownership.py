"""Whose a record is: greedy bounding sees only the graph."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.corpora import ListSource, write_jsonl
from tests.data.sources.fixtures import mail
from tests.data.sources.test_sources import LINE
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.ownership import bounded
from userdp.data.pipeline import append_records, prepare_store
from userdp.data.records import Drop, ExampleDrop, Record, Tally
from userdp.data.sources import open_source
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore

USERS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d"]), min_size=1, max_size=3, unique=True)


def records_of(graph, texts=None, unusable=()) -> list[Record]:
    return [
        Record(owners[0], (texts or {}).get(n, b"%d" % n), owners=tuple(owners),
               unusable=Drop.EMPTY_TEXT if n in unusable else None)
        for n, owners in enumerate(graph)
    ]  # fmt: skip


def taken(records, k, tally=None) -> list[int]:
    kept = bounded(records, records_per_user=k, held_out_users=0.0, tally=tally or Tally())
    return [int(record.text) for record in kept]


@settings(max_examples=60)
@given(graph=st.lists(USERS, max_size=25), k=st.integers(1, 5))
def test_invariant_3_no_user_owns_more_than_k_and_nothing_more_could_be_taken(graph, k):
    kept = taken(records_of(graph), k)
    owned = Counter(user for n in kept for user in graph[n])
    assert all(count <= k for count in owned.values())
    for n in set(range(len(graph))) - set(kept):
        assert any(owned[user] >= k for user in graph[n])


def depends_on_texts(graph, k) -> bool:
    """Whether making one record unusable changes which of the others are taken."""
    everything = taken(records_of(graph), k)
    return any(
        taken(records_of(graph, unusable={n}), k) != [m for m in everything if m != n]
        for n in range(len(graph))
    )


@settings(max_examples=60)
@given(graph=st.lists(USERS, max_size=15), k=st.integers(1, 3))
def test_which_records_are_taken_does_not_depend_on_texts(graph, k):
    assert not depends_on_texts(graph, k)


def test_a_bound_that_skips_unusable_records_is_caught(monkeypatch):
    """The twin: an empty text that frees its place lets others in."""

    def freed(records, **options):
        return real((record for record in records if record.unusable is None), **options)

    real = bounded
    monkeypatch.setitem(globals(), "bounded", freed)
    assert depends_on_texts([[b"a"], [b"a", b"b"], [b"b"]], 1)


def test_invariant_3_a_row_takes_its_place_in_the_bound_whatever_its_text(tmp_path):
    """From the reader on: a row of one owner that has no text frees no place for others."""
    for number, text in enumerate([b"some text", b"", b"\xff"]):
        rows = [{"user": "a", "text": "its text"}, {"user": ["a", "b"], "text": "more"},
                {"user": ["b", "c"], "text": "the last"}]  # fmt: skip
        path = write_jsonl(tmp_path / f"{number}.jsonl", rows)
        path.write_bytes(path.read_bytes().replace(b"its text", text))
        records = open_source([str(path)]).records(Tally(), Progress(), all_owned=True)
        kept = bounded(records, records_per_user=1, held_out_users=0.0, tally=Tally())
        assert b"the last" in [record.text for record in kept]


@pytest.mark.parametrize("body", ["<p>x", "<p><![no]>x"])
def test_invariant_3_a_mail_takes_its_place_in_the_bound_whatever_its_body(tmp_path, body):
    (tmp_path / "a.mbox").write_bytes(LINE + mail(body=body, **{"Content-Type": "text/html"}))
    (record,) = open_source([str(tmp_path / "a.mbox")]).records(Tally(), Progress(), all_owned=True)
    assert record.owners == (b"ana@example.org", b"ben@example.org")


def prepared(records, path, **options) -> UserStore:
    prepare_store(ListSource(tuple(records), several_owners=True), path, seq_len=8,
                  tokenizer=StoreTokenizer.load(), **options)  # fmt: skip
    return UserStore.open(path, fixed_graph=True)


def test_a_greedy_store_names_its_adjacency_and_gives_one_example_per_record(tmp_path):
    graph = [[b"a", b"b"], [b"a"], [b"b", b"c"], [b"a", b"c"]]
    long = {0: b"word " * 30}
    store = prepared(records_of(graph, long), tmp_path / "s", records_per_user=2,
                     held_out_users=0, held_out_examples=0)  # fmt: skip
    assert store.meta.ownership == {
        "rule": "greedy", "adjacency": "fixed-graph", "records_per_user": 2
    }  # fmt: skip
    assert store.meta.drops == {str(Drop.OVER_BOUND): 1}
    assert store.meta.totals["examples"] == store.meta.totals["records_stored"] == 3
    assert store.meta.example_drops[str(ExampleDrop.ONE_PER_RECORD)] >= 3
    assert int(store.split("train").counts.max()) <= 2
    with pytest.raises(UseError, match="add-or-remove would be false"):
        UserStore.open(store.path)
    with pytest.raises(UseError, match="bound on each owner was settled"):
        append_records(ListSource((Record(b"z", b"more text"),)), store.path)


def test_a_conversation_of_several_owners_gives_its_first_example_or_is_counted(tmp_path):
    """Under a bound: each record stands for one example, also where the loss counts none of it."""
    late = "a question " * 30
    talks = [(["ana", "ben"], "why?"), (["ben"], "who?"), (["cal"], late), (["cal"], "how?")]
    rows = [{"user": owners, "prompt": asked, "completion": "because " * 40}
            for owners, asked in talks]  # fmt: skip
    source = open_source([str(write_jsonl(tmp_path / "talks.jsonl", rows))])
    meta = prepare_store(source, tmp_path / "s", tokenizer=StoreTokenizer.load(), seq_len=16,
                         records_per_user=1, held_out_users=0, held_out_examples=0)  # fmt: skip
    assert meta.loss_mask
    assert meta.drops == {str(Drop.OVER_BOUND): 2, str(Drop.NO_ANSWER): 1}
    store = UserStore.open(tmp_path / "s", fixed_graph=True)
    assert store.user_ids() == [b"ana"]
    assert store.split("train").counts.tolist() == [1]
    assert store.split("train").gather([0], [0]).targets.any()
    assert meta.example_drops[str(ExampleDrop.NO_TARGET)] == 1


def test_nothing_that_a_held_out_user_owns_is_trained_on(tmp_path):
    draw = np.random.default_rng(0)
    graph = [[b"u%d" % u for u in draw.choice(20, 2, replace=False)] for _ in range(80)]
    store = prepared(records_of(graph), tmp_path / "s", records_per_user=50,
                     held_out_users=0.3)  # fmt: skip
    assert store.meta.drops[str(Drop.BOTH_SIDES)] > 0
    ids = store.user_ids()
    train = {ids[row] for row in store.split("train").rows}
    held_out = {ids[row] for row in store.split("held-out-users").rows}
    assert train
    assert held_out
    assert not train & held_out


def test_the_first_owner_alone_is_an_assumption_that_the_store_names(tmp_path):
    store = prepared(records_of([[b"a", b"b"], [b"b"]]), tmp_path / "s", held_out_users=0)
    assert store.meta.ownership["rule"] == "first-owner"
    assert "assumption" in store.meta.ownership
    assert store.meta.ownership["adjacency"] == "add-or-remove"
    single = prepared(records_of([[b"a"], [b"b"]]), tmp_path / "t", held_out_users=0)
    assert single.meta.ownership == {"rule": "single", "adjacency": "add-or-remove"}


@pytest.mark.parametrize("k", [0, -1, 1.5, float("nan")])
def test_a_bound_out_of_range_is_refused(tmp_path, k):
    with pytest.raises(UseError, match="records_per_user"):
        prepared(records_of([[b"a"]]), tmp_path / "s", records_per_user=k)
    with pytest.raises(UseError, match="records of one owner each"):
        prepare_store(ListSource((Record(b"a", b"b"),)), tmp_path / "s", records_per_user=3,
                      tokenizer=StoreTokenizer.load())  # fmt: skip
    assert list(tmp_path.iterdir()) == []
