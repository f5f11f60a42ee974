"""A store with a loss mask: private, plain and held-out losses count its marked tokens alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.data.corpora import ListSource
from tests.plans import els_plan, uls_plan
from tests.training.toy import sgd, toy_model
from tests.words import WORDS, write_tokenizer
from userdp.core.errors import UseError
from userdp.data.prepare import prepare_store
from userdp.data.records import TARGET, Record
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.training import steps as steps_module
from userdp.training.private import make_private


def chat(draw: random.Random) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """A question that does not count, and an answer that does."""
    question, answer = (" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(2))
    text = f"{question} {answer}"
    return text.encode(), ((len(question) + 1, 0), (len(text), TARGET))


@pytest.fixture
def store(tmp_path) -> UserStore:
    draw = random.Random(0)
    records = []
    for user in range(12):
        for _ in range(draw.randint(1, 4)):
            text, pieces = chat(draw)
            records.append(Record(f"user{user:02d}".encode(), text, len(records), pieces=pieces))
    prepare_store(
        ListSource(tuple(records), loss_mask=True),
        tmp_path / "store",
        tokenizer=StoreTokenizer.load(write_tokenizer(tmp_path / "tokenizer.json")),
        seq_len=8,
        held_out_users=0.2,
        held_out_examples=0,
    )
    return UserStore.open(tmp_path / "store")


def rows_of(store: UserStore, split: Split = Split.TRAIN):
    part = store.split(split)
    users = np.repeat(np.arange(len(part.counts)), part.counts)
    return users, part.gather(users, np.concatenate([np.arange(n) for n in part.counts]))


@pytest.mark.parametrize("make_plan", [uls_plan, els_plan])
def test_a_private_step_counts_the_marked_tokens_of_each_example_alone(
    store, tmp_path, monkeypatch, make_plan
):
    seen: list[Units] = []
    honest = get_engine("auto")

    def watched(model, loss, units, **options):
        seen.append(units)
        return honest(model, loss, units, **options)

    monkeypatch.setattr(steps_module, "engine_of", lambda model, name: watched)
    model = toy_model(store)
    plan = make_plan(
        population=100, steps=2, **{"cohort_size" if make_plan is uls_plan else "batch_size": 100}
    )
    with make_private(model, sgd(model), store, plan, out=tmp_path / "run") as private:
        next(iter(private))
    (units,) = seen
    _, rows = rows_of(store)
    ours = sorted(
        (ids[:n].tolist(), marks[:n].tolist())
        for ids, marks, n in zip(
            units.input_ids, units.targets, units.lengths.tolist(), strict=True
        )
    )
    bounds = list(zip(rows.offsets[:-1], rows.offsets[1:], strict=True))
    theirs = sorted((rows.tokens[a:b].tolist(), rows.targets[a:b].tolist()) for a, b in bounds)
    assert ours == theirs
    assert any(not all(marks[1:]) for _, marks in ours)


def test_a_loss_that_would_ignore_the_mask_is_refused_and_nothing_is_charged(store, tmp_path):
    def old(model, input_ids, lengths):
        return causal_lm_loss(model, input_ids, lengths)

    model = toy_model(store)
    with pytest.raises(UseError, match="takes no targets"):
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run", loss=old)
    assert not (tmp_path / "run").exists()
    assert not (store.path / "ledger.jsonl").exists()
