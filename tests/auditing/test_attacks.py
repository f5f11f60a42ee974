"""The attacks on a released model: the statistics by hand, members found, and broken twins."""

import stat

import numpy as np
import pytest
import torch
from scipy.stats import binom

from tests.auditing import toy
from tests.data.corpora import ListSource, interleaved
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, store_of, toy_model
from tests.words import WORDS
from userdp.auditing import membership, repetitions
from userdp.auditing.membership import (
    Side,
    area,
    fresh_examples,
    fresh_text,
    membership_inference,
    roc,
)
from userdp.auditing.repetitions import copy_half, reference_scores
from userdp.data.splits import Split
from userdp.ledger import StoreLedger
from userdp.training.causal_models import load_model, read_model
from userdp.training.config import PlainPlan
from userdp.training.loop import train

# ------------------------------------------------------------------------- ROC, against counting


def test_the_area_is_the_part_of_all_pairs_that_are_in_order():
    draw = np.random.default_rng(0)
    members, others = draw.integers(0, 9, 30) * 1.0, draw.integers(-2, 8, 23) * 1.0
    pairs = np.mean([(m > o) + 0.5 * (m == o) for m in members for o in others])
    assert area(members, others) == pytest.approx(pairs)
    found = roc(members, others)
    assert np.trapezoid(*np.array(found.curve).T[::-1]) == pytest.approx(pairs)
    hits = int((members > others.max()).sum())
    assert found.tpr_at_low_fpr == hits / 30
    # Clopper-Pearson: at either end so many hits have a tail of 2.5%.
    assert binom.sf(hits - 1, 30, found.tpr_low) == pytest.approx(0.025)
    assert binom.cdf(hits, 30, found.tpr_high) == pytest.approx(0.025)


@pytest.mark.slow
def test_the_interval_covers_chance_for_equals_and_not_for_members(monkeypatch):
    monkeypatch.setattr(membership, "_RESAMPLES", 100)
    draw = np.random.default_rng(1)
    equal = [roc(draw.standard_normal(60), draw.standard_normal(60)).at_chance for _ in range(40)]
    assert np.mean(equal) > 0.85
    apart = roc(draw.standard_normal(60) + 1, draw.standard_normal(60))
    assert apart.auc_low > 0.5
    assert not apart.at_chance


# ------------------------------------------------------------------- against the base model


def half_held_out(folder, texts, **options):
    return store_of(folder, ListSource(interleaved(texts)), held_out_users=0.5, **options)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """Two words of one's own in every record, after words that are easy for some people
    and hard for others."""
    draw = np.random.default_rng(0)

    def record(number):
        own = f"{WORDS[number % 30]} {WORDS[number // 30]}"
        return " ".join([*(WORDS[word] for word in draw.integers(1 + number % 29, size=5)), own])

    texts = {f"user{n:03d}".encode(): [record(n) for _ in range(12)] for n in range(240)}
    return half_held_out(tmp_path_factory.mktemp("people"), texts, held_out_examples=0.4)


def test_the_log_likelihood_is_the_sum_over_an_examples_tokens(people):
    model = toy_model(people).eval()
    part = people.split(Split.HELD_OUT_USERS)
    users, examples = np.array([0, 3, 1]), np.array([1, 0, 2])
    found, targets = Side(part, users, np.array([1, 1, 1]), examples).log_likelihoods(model)
    assert targets.tolist() == (part.lengths(users, examples) - 1).tolist()
    for number in range(3):
        tokens = torch.from_numpy(part.gather(users, examples).row(number).astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=tokens[None]).logits[0].double()
        told = logits[:-1].log_softmax(1)[torch.arange(len(tokens) - 1), tokens[1:]]
        assert found[number] == pytest.approx(float(told.sum()), rel=1e-5)


def test_a_model_that_was_not_trained_tells_nobody(people):
    base = toy_model(people)
    assert membership_inference(base, base, fresh_text(people)).auc == 0.5


@pytest.mark.parametrize("whole", fast_then_slow([False, True]), ids=["honest", "the twin"])
def test_busy_people_are_not_taken_for_members_unless_held_out_users_are_read_whole(
    tmp_path, monkeypatch, whole
):
    """Half of all people write twenty records, about one word; the others two, about another."""
    texts = {
        f"user{number:03d}".encode(): [" ".join([WORDS[number % 2]] * 4)] * (2, 20)[number % 2]
        for number in range(400)
    }

    def by_word(side, model):
        rows = zip(np.repeat(side.people, side.counts), side.examples, strict=True)
        word = [side.part.gather([user], [example]).row(0)[0] for user, example in rows]
        return np.array(word) * float(model), np.ones(len(word), dtype=np.int64)

    honest = membership.fresh_examples

    def everything(store):
        held_out = [np.arange(n) for n in store.split(Split.HELD_OUT_USERS).counts]
        return {**honest(store), Split.HELD_OUT_USERS: held_out}

    monkeypatch.setattr(Side, "log_likelihoods", by_word)
    if whole:
        monkeypatch.setattr(membership, "fresh_examples", everything)
    fresh = fresh_text(half_held_out(tmp_path, texts, held_out_examples=0.1))
    assert membership_inference(1, 0, fresh).at_chance is not whole


# -------------------------------------------------------------------- against reference runs

PLAIN = PlainPlan(steps=60, batch_size=32)


def texts(store, split, fresh=None):
    """What each person of a split wrote, less what is fresh, by the name of a copy."""
    part, found = store.split(split), {}
    for user, row in enumerate(part.rows):
        own = np.setdiff1d(np.arange(part.counts[user]), [] if fresh is None else fresh[user])
        rows = part.gather(np.full(len(own), user), own)
        found[row] = [tuple(rows.row(number).tolist()) for number in range(len(own))]
    return found


def test_each_person_is_in_one_of_every_pair_with_all_that_is_not_fresh(people, tmp_path):
    fresh = fresh_examples(people)[Split.HELD_OUT_USERS]
    everybody = texts(people, Split.TRAIN) | texts(people, Split.HELD_OUT_USERS, fresh)
    halves = []
    for number in range(4):
        half = copy_half(people, tmp_path / str(number), number)
        names = [int(name.removeprefix(b"user")) for name in half.user_ids()]
        halves.append({names[row]: own for row, own in texts(half, Split.TRAIN).items()})
    for first, second in (halves[:2], halves[2:]):
        assert not first.keys() & second.keys()
        assert first | second == everybody
        assert 0.3 < len(first) / len(everybody) < 0.7
    assert halves[0].keys() not in (halves[2].keys(), halves[3].keys())


def scores_of(people, place, count, plan=PLAIN):
    like = toy.repetition(people, place, plan, CONFIG)
    return reference_scores(like, fresh_text(people), count=count)


@pytest.mark.slow
def test_members_are_found_who_are_not_against_the_base_model(people, tmp_path):
    train(people, PLAIN, CONFIG, out=tmp_path / "run")
    model, fresh = read_model(str(tmp_path / "run" / "model")), fresh_text(people)
    plain = membership_inference(model, load_model(CONFIG, people), fresh)
    scores = scores_of(people, tmp_path / "references", 6)
    found = fresh.roc(fresh.means(model, per_token=True) - scores)
    assert plain.at_chance
    assert found.auc_low > 0.5
    assert found.auc > plain.auc + 0.05


def test_finished_references_are_kept_and_nothing_else(people, tmp_path, monkeypatch):
    calls, place, charged = [], tmp_path / "references", StoreLedger(people.path).history().charges
    short = PlainPlan(steps=3, batch_size=8)

    def train_one(*arguments, out, **options):
        calls.append(out)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(*arguments, out=out, **options)

    monkeypatch.setattr(repetitions, "train", train_one)
    with pytest.raises(KeyboardInterrupt):
        scores_of(people, place, 2, short)
    assert len(list(place.iterdir())) == 1
    found = scores_of(people, place, 2, short)
    assert np.array_equal(found, scores_of(people, place, 2, short))
    assert len(calls) == 3
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in place.iterdir())
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert not np.array_equal(found, scores_of(people, place, 2, PlainPlan(steps=2, batch_size=8)))
    assert StoreLedger(people.path).history().charges == charged
