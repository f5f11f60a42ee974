"""Source to store: nothing is lost, nobody's data depends on another's."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import userdp.data.examples as examples_module
from tests.data.corpora import (
    ListSource,
    corpus,
    interleaved,
    prepared,
    view,
    write_jsonl,
)
from tests.data.sources.fixtures import ODD_LINES
from userdp.core.errors import FailureError, UseError
from userdp.data.grouping import Grouping
from userdp.data.pipeline import prepare_store
from userdp.data.records import Drop, Record
from userdp.data.sources import Source, open_source
from userdp.data.splits import Split
from userdp.data.store_tokenizer import BUNDLED_TOKENIZER, StoreTokenizer
from userdp.data.user_store import UserStore


def plain_examples(texts: list[str], seq_len: int) -> list[list[int]]:
    """The oracle: one user's examples by the tokenizers library and slices."""
    tokenizer = Tokenizer.from_file(str(BUNDLED_TOKENIZER))
    end, examples = tokenizer.token_to_id("<|endoftext|>"), []
    for text in texts:
        tokens = [*tokenizer.encode(text).ids, end]
        for start in range(0, len(tokens), seq_len):
            piece = tokens[start : start + seq_len]
            if len(piece) >= 2:
                examples.append(piece)
    return examples


def test_each_users_splits_hold_exactly_the_examples_cut_from_that_users_records(tmp_path):
    texts = corpus(40)
    seen = view(prepared(texts, tmp_path / "store"))
    assert set(seen) == set(texts)
    for user, held in texts.items():
        kept = [e for split in Split for e in seen[user].get(str(split), [])]
        assert sorted(kept) == sorted(plain_examples(held, 8))
        assert ("held-out-users" in seen[user]) != ("train" in seen[user])
    assert sum("held-out-users" in user for user in seen.values()) in range(2, 20)


@pytest.mark.parametrize(("held_out", "kept"), [(0, None), (1, 1)])
def test_examples_keep_the_order_of_the_records_and_one_record_trains_at_least(
    tmp_path, held_out, kept
):
    texts = corpus(20)
    store = prepared(texts, tmp_path / "store", held_out_users=0, held_out_examples=held_out)
    assert store.user_ids() == sorted(texts)
    for user, seen in view(store).items():
        assert seen["train"] == plain_examples(texts[user][:kept], 8)


def test_all_users_can_be_held_out(tmp_path):
    store = prepared(corpus(5), tmp_path / "store", held_out_users=1)
    assert len(store.split("train").counts) == 0
    assert len(store.split("held-out-users").counts) == 5
    assert len(store.split("train").gather([], [])) == 0


def test_the_same_records_give_the_same_content_whatever_the_order_of_the_users(tmp_path):
    texts = corpus(20)
    first = prepared(interleaved(texts, seed=1), tmp_path / "one")
    second = prepared(interleaved(texts, seed=2), tmp_path / "two")
    assert first.meta.content_sha256 == second.meta.content_sha256
    assert first.meta.store_id != second.meta.store_id
    texts[b"user003"][0] += "."
    assert prepared(texts, tmp_path / "three").meta.content_sha256 != first.meta.content_sha256


# Invariant 10


def test_invariant_10_every_drop_is_counted(tmp_path):
    outcomes = [*ODD_LINES.values(), ("b", "kept")]
    path = write_jsonl(tmp_path / "odd.jsonl", [*ODD_LINES, {"user": "b", "text": "kept"}])
    meta = prepare_store(
        open_source([str(path)]), tmp_path / "store", tokenizer=StoreTokenizer.load()
    )
    kept = [outcome for outcome in outcomes if not isinstance(outcome, Drop)]
    reasons = Counter(str(outcome) for outcome in outcomes if isinstance(outcome, Drop))
    assert len(reasons) == 10, "all that a line of JSON can be dropped for"
    assert meta.drops == reasons
    assert meta.totals["records_read"] == len(outcomes)
    assert meta.totals["records_stored"] == len(kept)
    users = {user.encode() for user, _ in kept}
    assert UserStore.open(tmp_path / "store").user_ids() == sorted(users)


def test_invariant_10_twin_a_source_that_loses_a_record_without_a_reason_is_caught(tmp_path):
    class Forgetful(Source):
        def records(self, tally, progress, **options):
            yield from list(super().records(tally, progress, **options))[1:]

    source = Forgetful(**vars(ListSource(interleaved(corpus(3)))))
    with pytest.raises(FailureError, match="books do not balance"):
        prepare_store(source, tmp_path / "store", tokenizer=StoreTokenizer.load())
    assert list(tmp_path.iterdir()) == []


def test_invariant_10_twin_a_stage_that_loses_a_record_is_caught(tmp_path, monkeypatch):
    whole = Grouping.batches
    monkeypatch.setattr(
        Grouping, "batches", lambda self, **o: (b.slice(0, len(b) - 1) for b in whole(self, **o))
    )
    with pytest.raises(FailureError, match="books do not balance"):
        prepared(corpus(3), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_invariant_10_pieces_too_short_to_train_on_are_counted(tmp_path):
    # "a" and the end of text are 2 tokens; with 3 the third is alone at seq_len 2.
    tokenizer = StoreTokenizer.load()
    texts = [text for text in ("a", "a b", "a b c") if len(tokenizer.encode([text])[0]) == 3]
    records = [Record(b"u", text.encode()) for text in texts]
    store = prepared(records, tmp_path / "store", seq_len=2, held_out_users=0)
    assert sum(store.meta.example_drops.values()) == len(texts) > 0
    assert store.meta.totals["examples"] == len(texts)


def test_invariant_10_records_of_one_token_are_dropped_and_counted(tmp_path):
    bare = json.loads(BUNDLED_TOKENIZER.read_bytes())
    bare["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(bare))
    tokenizer = StoreTokenizer.load(tmp_path)
    assert tokenizer.end_of_text_id is None
    records = (Record(b"u", b"a"), Record(b"u", b"a longer text"), Record(b"v", b"b"))
    meta = prepare_store(ListSource(records), tmp_path / "store", tokenizer=tokenizer)
    assert meta.drops == {str(Drop.TOO_SHORT): 2}
    assert meta.totals["users"] == 1


# Invariant 11


def others_that_change(tmp_path: Path, texts=None, *, before=lambda: None) -> set[bytes]:
    """Users of whom training sees something else once one other user is removed (or added).

    ``before`` is called before each store is prepared.
    """

    def seen_of(name: str, held: dict[bytes, list[str]]):
        before()
        return view(prepared(held, tmp_path / name))

    everyone, texts = texts is not None, texts or corpus(30, seed=5)
    largest = max(texts, key=lambda user: len(texts[user]))
    everybody, changed = seen_of("all", texts), set()
    for left in texts if everyone else {min(texts), sorted(texts)[14], max(texts), largest}:
        rest = {user: held for user, held in texts.items() if user != left}
        seen = seen_of(f"without-{left.decode()}", rest)
        assert set(seen) == set(rest)
        changed |= {user for user in rest if seen[user] != everybody[user]}
    return changed


@pytest.mark.pitfall(number=29)
def test_invariant_11_preprocessing_is_per_user(tmp_path):
    assert others_that_change(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.pitfall(number=40)
def test_invariant_11_twin_users_split_by_their_index_are_caught(tmp_path, monkeypatch):
    seen: dict[bytes, int] = {}
    by_index = lambda user, fraction: seen.setdefault(user, len(seen)) % 5 == 0  # noqa: E731
    monkeypatch.setattr(examples_module, "is_held_out_user", by_index)
    assert others_that_change(tmp_path, before=seen.clear)


@pytest.mark.slow
def test_invariant_11_twin_records_split_by_one_generator_for_everybody_are_caught(
    tmp_path, monkeypatch
):
    def drawn(user, first, count, *, fraction):
        return np.array([draw.random() < fraction and first + n > 0 for n in range(count)])

    draw = random.Random(0)
    monkeypatch.setattr(examples_module, "held_out_records", drawn)
    assert others_that_change(tmp_path, before=lambda: draw.seed(0))


@pytest.mark.slow
def test_invariant_11_twin_deduplication_across_users_is_caught(tmp_path, monkeypatch):
    def once_each(self, tally, progress, **options):
        seen = set()
        for record in real(self, tally, progress, **options):
            if record.text in seen:
                tally.drop(Drop.REPEATED)
            else:
                yield record
            seen.add(record.text)

    texts = {
        f"user{number:02d}".encode(): [
            f"mine {number}",
            *(f"letter {number % 6}.{k}" for k in range(5)),
        ]
        for number in range(12)
    }
    assert others_that_change(tmp_path / "private", texts) == set()
    real = Source.records
    monkeypatch.setattr(Source, "records", once_each)
    assert others_that_change(tmp_path / "x", texts)


# Bad use


BAD = [
    *(("seq_len", value) for value in (1, 0, -4, 2**20 + 1, float("nan"), 12.5, True)),
    *((name, value) for name in ("held_out_users", "held_out_examples")
      for value in (-0.1, 1.1, float("nan"), float("inf"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_setting_out_of_range_and_nothing_to_store_are_refused_and_leave_nothing(
    tmp_path, name, value
):
    with pytest.raises(UseError, match=name):
        prepared(corpus(2), tmp_path / "store", **{name: value})
    with pytest.raises(UseError, match="no records"):
        prepared([], tmp_path / "store")
    assert list(tmp_path.iterdir()) == []
