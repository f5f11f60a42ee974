"""Which of a user's examples a run trains on, and when they are read."""

import shutil
from itertools import pairwise

import numpy as np
import pytest

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, take, toy_model
from userdp.core.errors import UseError
from userdp.data.selection import read_scores
from userdp.data.selection_strategies import Strategy
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.gradients import Units, causal_lm_loss, clipped_sum
from userdp.ledger import RunRecord
from userdp.people.erasure import forget_user
from userdp.sampling.draws import Sampler, secret_generator
from userdp.training.collate import Collator
from userdp.training.config import PrivateOptions, UnsafeSeeds
from userdp.training.loop import train
from userdp.training.store_losses import score_store

EVERYBODY = uls_plan(population=100, cohort_size=100, group_size=3, steps=2)


@pytest.fixture(scope="module")
def scored(prepared, tmp_path_factory):
    """A store, a model, and the file of the scores that it gives."""
    folder = tmp_path_factory.mktemp("scores")
    store = UserStore.open(prepared)
    model = toy_model(store)
    model.save_pretrained(folder / "model")
    score_store(store, str(folder / "model"), folder / "scores.arrow", batch=5)
    return store, model, folder / "scores.arrow"


@pytest.mark.parametrize("strategy", fast_then_slow(list(Strategy)))
def test_invariant_3_no_selection_moves_the_sum_by_more_than_the_clip(scored, strategy):
    """Leave one user's unit out: what everybody else selected stays, whatever the strategy."""
    store, model, path = scored
    seeds, scores = UnsafeSeeds(draws=1), path if strategy.scored else None
    options = PrivateOptions(selection=strategy, scores=scores, unsafe_seeds=seeds)
    collator = Collator(store, EVERYBODY, options)
    drawn = collator(Sampler(EVERYBODY.sampling, collator.counts, secret_generator(1)).draw())
    units = []
    for unit in range(len(drawn)):
        ids, lengths, _ = drawn.select(unit, unit + 1).cut()
        rows = zip(ids, lengths.tolist(), strict=True)
        units.append([tuple(row[:length].tolist()) for row, length in rows])

    def total(rows):
        return clipped_sum(model, causal_lm_loss, Units.from_rows(rows), l2_clip_norm=0.3).value

    whole = total(units)
    for left_out in (0, 5):
        rest = total(units[:left_out] + units[left_out + 1 :])
        assert sum(float((whole[n] - v).square().sum()) for n, v in rest.items()) ** 0.5 <= 0.3


@pytest.mark.slow
def test_a_resumed_run_keeps_its_selection_and_its_scores(scored, begin, tmp_path):
    path, run = scored[2], tmp_path / "run"
    chosen = {"selection": "highest-perplexity", "scores": path}
    with begin(**chosen) as private:
        take(private, 1)
    assert RunRecord.read(run).begin.facts["selection"] == "highest-perplexity"
    assert str(path) not in (run / "ledger.jsonl").read_text()
    with pytest.raises(UseError, match="the selection is not the one"):
        begin(resume=True, **{**chosen, "selection": "lowest-perplexity"})
    with begin(model=private._of.model, resume=True, **chosen) as private:
        assert len(take(private)) == 4


def test_invariant_11_a_score_is_the_same_to_the_last_bit_whoever_else_is_there(scored, tmp_path):
    store, _, path = scored
    place = shutil.copytree(store.path, tmp_path / "store")
    (place / "places.jsonl").unlink()  # which names the first store's scores
    forget_user(place, "user001")
    fewer = UserStore.open(place)
    score_store(fewer, str(path.with_name("model")), tmp_path / "scores", batch=5)
    whole, rest = read_scores(path, store), read_scores(tmp_path / "scores", fewer)
    pieces = pairwise(np.cumsum([0, *store.split(Split.TRAIN).counts]))
    assert len(rest) < len(whole)
    assert any(np.array_equal(np.delete(whole, slice(a, b)), rest) for a, b in pieces)


def test_scores_of_a_model_that_learned_from_people_are_refused(store, tmp_path):
    """Of this store or of another: what it learned would choose among other people's examples."""
    run = tmp_path / "run"
    train(store, uls_plan(steps=1), CONFIG, out=run)
    for place in (run / "model", shutil.copytree(run / "model", tmp_path / "copy")):
        with pytest.raises(UseError, match="trained on people's text"):
            score_store(store, str(place), tmp_path / "scores.arrow")
    assert not (tmp_path / "scores.arrow").exists()


@pytest.mark.slow
def test_invariant_7_nothing_is_drawn_or_gathered_before_its_step_is_in_the_ledger(begin, tmp_path):
    private, events = begin(EVERYBODY, micro_batch=4), []
    ledger, mechanism = tmp_path / "run" / "ledger.jsonl", private.mechanism

    def watched(call):
        def watch(*arguments, **options):
            events.append(ledger.read_text().count('"kind":"attempt"'))
            return call(*arguments, **options)

        return watch

    mechanism.sampler.draw = watched(mechanism.sampler.draw)
    mechanism.collator._split.gather = watched(mechanism.collator._split.gather)
    with private:
        for step in private:
            assert len(events) == 2
            assert set(events) == {step.number}  # every line of this step, and no later one
            events.clear()
            private._of.optimizer.step()
