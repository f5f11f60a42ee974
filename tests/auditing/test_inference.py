"""The user-inference attack: the statistic by hand, members found, and a broken twin."""

import numpy as np
import pytest
import torch

from tests.auditing.toy import store_of
from tests.training.toy import CONFIG, toy_model
from tests.words import WORDS
from userdp.auditing import inference
from userdp.auditing.inference import Side, fresh_text, user_inference
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.training.config import PlainPlan
from userdp.training.loop import train
from userdp.training.models import read_model


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> UserStore:
    """Each user has a word of their own that follows every other word of theirs."""
    folder = tmp_path_factory.mktemp("people")
    draw = np.random.default_rng(0)

    def record(own: str) -> str:
        return " ".join(f"{WORDS[draw.integers(30)]} {own}" for _ in range(3))

    texts = {
        f"user{number:03d}".encode(): [record(WORDS[number % 30]) for _ in range(12)]
        for number in range(50)
    }
    return store_of(folder, texts, held_out_examples=0.3)


def test_the_log_likelihood_is_the_sum_over_an_examples_tokens(people):
    model = toy_model(people).eval()
    part = people.split(Split.HELD_OUT_USERS)
    users, examples = np.array([0, 3, 1]), np.array([1, 0, 2])
    side = Side(part=part, people=users, counts=np.array([1, 1, 1]), examples=examples)
    found, targets = side.log_likelihoods(model)
    assert targets.tolist() == (part.lengths(users, examples) - 1).tolist()
    rows = part.gather(users, examples)
    for number in range(3):
        tokens = torch.from_numpy(rows.row(number).astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=tokens[None]).logits[0].double()
        expected = sum(
            float(logits[t].log_softmax(0)[tokens[t + 1]]) for t in range(len(tokens) - 1)
        )
        assert found[number] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_members_of_a_run_without_privacy_are_found_and_without_training_nobody(people, tmp_path):
    base = toy_model(people)
    assert user_inference(base, base, fresh_text(people)).auc == 0.5
    plan = PlainPlan(steps=150, batch_size=32)
    train(people, plan, CONFIG, out=tmp_path / "run")
    found = user_inference(read_model(str(tmp_path / "run" / "model")), base, fresh_text(people))
    assert found.auc_low > 0.5
    assert not found.at_chance


@pytest.fixture(scope="module")
def busy(tmp_path_factory) -> UserStore:
    """Half of all people write twenty records, about one word; the others two, about another."""
    folder = tmp_path_factory.mktemp("busy")
    texts = {
        f"user{number:03d}".encode(): [" ".join([WORDS[number % 2]] * 4)] * (2, 20)[number % 2]
        for number in range(400)
    }
    return store_of(folder, texts, held_out_examples=0.1)


def attack_on_a_model_that_favours_busy_people(store, monkeypatch):
    def by_word(side, model):
        users = np.repeat(side.people, side.counts)
        rows = zip(users, side.examples, strict=True)
        word = [side.part.gather([user], [example]).row(0)[0] for user, example in rows]
        return np.array(word) * float(model), np.ones(len(word), dtype=np.int64)

    monkeypatch.setattr(Side, "log_likelihoods", by_word)
    return user_inference(1, 0, fresh_text(store))


@pytest.mark.slow
def test_busy_people_are_not_taken_for_members(busy, monkeypatch):
    assert attack_on_a_model_that_favours_busy_people(busy, monkeypatch).at_chance


def test_a_broken_twin_that_reads_held_out_users_whole_is_caught(busy, monkeypatch):
    honest = inference.fresh_examples

    def whole(store):
        everything = [np.arange(n) for n in store.split(Split.HELD_OUT_USERS).counts]
        return {**honest(store), Split.HELD_OUT_USERS: everything}

    monkeypatch.setattr(inference, "fresh_examples", whole)
    found = attack_on_a_model_that_favours_busy_people(busy, monkeypatch)
    assert not found.at_chance
