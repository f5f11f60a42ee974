"""A store with a loss mask: the loss of a private step counts its marked tokens alone."""

import random

import numpy as np
import pytest

from tests.data.corpora import ListSource
from tests.plans import els_plan, uls_plan
from tests.training.toy import store_of
from tests.words import WORDS
from userdp.core.errors import UseError
from userdp.data.records import TARGET, Record
from userdp.data.splits import Split
from userdp.gradients import causal_lm_loss, get_engine
from userdp.training import step_mechanism as steps_module
from userdp.training.store_losses import rows_of


def chat(draw, user):
    """A question that does not count, and an answer that does."""
    question, answer = (" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(2))
    pieces = ((len(question) + 1, 0), (len(question) + 1 + len(answer), TARGET))
    return Record(user, f"{question} {answer}".encode(), pieces=pieces)


@pytest.fixture
def store(tmp_path):
    draw = random.Random(0)
    users = [f"user{user:02d}".encode() for user in range(12) for _ in range(draw.randint(1, 4))]
    source = ListSource(tuple(chat(draw, user) for user in users), loss_mask=True)
    return store_of(tmp_path, source, held_out_users=0.2, held_out_examples=0)


EVERYBODY = [
    uls_plan(population=100, steps=2, cohort_size=100),
    els_plan(population=100, steps=2, batch_size=100),
]


@pytest.mark.parametrize("plan", EVERYBODY, ids=["ULS", "ELS"])
def test_a_private_step_counts_the_marked_tokens_of_each_example_alone(
    store, begin, monkeypatch, plan
):
    seen, honest = [], get_engine("auto")

    def watched(model, loss, units, **options):
        seen.append(units)
        return honest(model, loss, units, **options)

    monkeypatch.setattr(steps_module, "get_engine", lambda name: watched)
    with begin(plan) as private:
        next(iter(private))
    (units,) = seen
    part = store.split(Split.TRAIN)
    rows = part.gather(*rows_of(part, np.arange(len(part.counts))))
    found = zip(units.input_ids, units.targets, units.lengths.tolist(), strict=True)
    ours = sorted((ids[:n].tolist(), marks[:n].tolist()) for ids, marks, n in found)
    bounds = zip(rows.offsets[:-1], rows.offsets[1:], strict=True)
    theirs = ((rows.tokens[a:b].tolist(), rows.targets[a:b].tolist()) for a, b in bounds)
    assert ours == sorted(theirs)
    assert any(not all(marks[1:]) for _, marks in ours)


def test_a_loss_that_would_ignore_the_mask_is_refused_and_nothing_is_charged(
    store, begin, tmp_path
):
    def old(model, input_ids, lengths):
        return causal_lm_loss(model, input_ids, lengths)

    with pytest.raises(UseError, match="takes no targets"):
        begin(loss=old)
    assert not (tmp_path / "run").exists()
    assert not (store.path / "ledger.jsonl").exists()
