"""Reference runs: who is in which half, what each trains on, and what the calibration gains."""

import stat

import numpy as np
import pytest

from tests.auditing import toy
from tests.training.toy import CONFIG
from tests.words import WORDS
from userdp.auditing import references
from userdp.auditing.audit_run import audit_run
from userdp.auditing.inference import fresh_examples, fresh_text, user_inference
from userdp.auditing.references import calibrated, copy_half, per_token, reference_scores
from userdp.cli.app import run as userdp
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.ledger import StoreLedger
from userdp.training.config import PlainPlan
from userdp.training.loop import train
from userdp.training.models import load_model, read_model

STEPS = 60


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> UserStore:
    """Two words of one's own in every record, after words that are easy for some people
    and hard for others."""
    folder = tmp_path_factory.mktemp("referenced")
    draw = np.random.default_rng(0)

    def record(number: int) -> str:
        own = f"{WORDS[number % 30]} {WORDS[number // 30]}"
        easy = draw.integers(1 + number % 29, size=5)
        return " ".join([*(WORDS[word] for word in easy), own])

    texts = {f"user{n:03d}".encode(): [record(n) for _ in range(12)] for n in range(240)}
    return toy.store_of(folder, texts, held_out_examples=0.4)


def rows_of(part, user, examples):
    """A user's examples as tuples of tokens."""
    rows = part.gather(np.full(len(examples), user), examples)
    return [tuple(rows.row(row).tolist()) for row in range(len(examples))]


def trained_on(store):
    """What each person's text in a copy is, by name."""
    part = store.split(Split.TRAIN)
    ids = store.user_ids()
    return {
        ids[row]: rows_of(part, user, np.arange(part.counts[user]))
        for user, row in enumerate(part.rows)
    }


def trainable(store):
    """What each person's text less their fresh text is, found without the code under test."""
    found = {}
    for split in (Split.TRAIN, Split.HELD_OUT_USERS):
        part = store.split(split)
        fresh = fresh_examples(store)[Split.HELD_OUT_USERS]
        for user, row in enumerate(part.rows):
            kept = [
                example
                for example in range(part.counts[user])
                if split is Split.TRAIN or example not in fresh[user].tolist()
            ]
            found[b"user%09d" % row] = rows_of(part, user, np.array(kept))
    return found


def test_each_person_is_in_one_of_every_pair_with_all_that_is_not_fresh(people, tmp_path):
    everybody = trainable(people)
    halves = [trained_on(copy_half(people, tmp_path / str(n), n)) for n in range(4)]
    for first, second in (halves[:2], halves[2:]):
        assert not first.keys() & second.keys()
        assert first | second == everybody
        assert 0.3 < len(first) / len(everybody) < 0.7
    assert halves[0].keys() not in (halves[2].keys(), halves[3].keys())


@pytest.fixture(scope="module")
def run(people, tmp_path_factory):
    out = tmp_path_factory.mktemp("attacked") / "run"
    train(people, PlainPlan(steps=STEPS, batch_size=32), CONFIG, out=out)
    return out


@pytest.fixture(scope="module")
def scores(people, tmp_path_factory):
    return reference_scores(
        people,
        fresh_text(people),
        PlainPlan(steps=STEPS, batch_size=32),
        CONFIG,
        place=tmp_path_factory.mktemp("kept") / "references",
        count=6,
    )


@pytest.mark.slow
def test_members_are_found_who_are_not_against_the_base_model(people, run, scores):
    fresh = fresh_text(people)
    own = per_token(read_model(str(run / "model")), fresh)
    found = fresh.roc(calibrated(own, scores))
    plain = user_inference(read_model(str(run / "model")), load_model(CONFIG, people), fresh)
    assert plain.at_chance
    assert found.auc_low > 0.5
    assert found.auc > plain.auc + 0.05


@pytest.mark.slow
def test_a_broken_twin_whose_references_train_on_members_alone_is_caught(
    people, run, scores, tmp_path, monkeypatch
):
    """Such references have seen whom the run saw, and there is nothing left to tell."""

    def members(store, out, number):
        part = store.split(Split.TRAIN)
        with references.copied(store, out) as copy:
            for user in range(len(part.counts)):
                copy.user(part, user, np.arange(part.counts[user]))
        return UserStore.open(out)

    monkeypatch.setattr(references, "copy_half", members)
    plan, fresh = PlainPlan(steps=STEPS, batch_size=32), fresh_text(people)
    blind = reference_scores(people, fresh, plan, CONFIG, place=tmp_path / "place", count=2)
    own = per_token(read_model(str(run / "model")), fresh)
    assert fresh.roc(calibrated(own, blind)).at_chance
    assert not fresh.roc(calibrated(own, scores)).at_chance


def trains(monkeypatch, *, stop_before=None):
    """The folders of the runs that are trained from here on."""
    calls = []

    def train_one(*arguments, out, **options):
        calls.append(out)
        if len(calls) == stop_before:
            raise KeyboardInterrupt
        return train(*arguments, out=out, **options)

    monkeypatch.setattr(references, "train", train_one)
    return calls


def test_finished_references_are_kept_and_nothing_else(people, tmp_path, monkeypatch):
    plan, fresh = PlainPlan(steps=3, batch_size=8), fresh_text(people)
    place, calls = tmp_path / "references", trains(monkeypatch, stop_before=2)
    asked = {"place": place, "count": 2}
    charged = StoreLedger(people.path).charges()
    with pytest.raises(KeyboardInterrupt):
        reference_scores(people, fresh, plan, CONFIG, **asked)
    assert len(list(place.iterdir())) == 1
    found = reference_scores(people, fresh, plan, CONFIG, **asked)
    assert len(calls) == 3
    assert np.array_equal(found, reference_scores(people, fresh, plan, CONFIG, **asked))
    assert len(calls) == 3
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in place.iterdir())
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    other = PlainPlan(steps=2, batch_size=8)
    assert not np.array_equal(found, reference_scores(people, fresh, other, CONFIG, **asked))
    assert StoreLedger(people.path).charges() == charged


@pytest.mark.slow
def test_a_private_run_is_compared_with_private_runs(tmp_path, monkeypatch, capsys):
    store = toy.audit_store(tmp_path, users=60)
    plan = toy.audit_plan(population=60, cohort_size=10, steps=4)
    train(store, plan, toy.CONFIG, out=tmp_path / "run")
    charged = StoreLedger(store.path).charges()
    calls = trains(monkeypatch)
    found = audit_run(tmp_path / "run", store, repeat=False, references=2)
    assert len(calls) == 2
    assert found["references"]["runs"] == 2
    assert 0 <= found["references"]["auc_low"] <= found["references"]["auc_high"] <= 1
    assert StoreLedger(store.path).charges() == charged
    command = ["audit", str(tmp_path / "run"), "--store", str(store.path), "--no-repeat"]
    command += ["--references", "2", "--plot", str(tmp_path / "roc.png")]
    assert userdp(command) == 0
    assert "against 2 reference runs: AUC" in capsys.readouterr().out
    assert len(calls) == 2
    assert userdp([*command, "--references", "3"]) == 2
