"""Which of a user's examples a run trains on; and cohorts in parts."""

from __future__ import annotations

import shutil

import pytest

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, gradient, private_run, sgd, toy_model
from userdp.core.errors import UseError
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.gradients import ClippedSum, Units, causal_lm_loss, clipped_sum
from userdp.ledger import RunRecord
from userdp.sampling.cohort import Sampler
from userdp.sampling.coins import secret_generator
from userdp.training import steps as steps_module
from userdp.training.collate import Collator
from userdp.training.config import PrivateOptions, UnsafeSeeds
from userdp.training.loop import train
from userdp.training.private import make_private
from userdp.training.scores import score_store

G = 3
EVERYBODY = {"population": 100, "group_size": G, "steps": 2}


@pytest.fixture(scope="module")
def scored(prepared, tmp_path_factory):
    """A file of scores whose order is known: made by a model, then read."""
    folder = tmp_path_factory.mktemp("scores")
    store = UserStore.open(prepared)
    model = toy_model(store)
    model.save_pretrained(folder / "model")
    done = score_store(store, str(folder / "model"), folder / "scores.arrow", batch=5)
    return store, model, folder / "scores.arrow", done


def rows_in(units: Units) -> list[list[tuple[int, ...]]]:
    return [
        [tuple(row[:n].tolist()) for row, n in zip(ids, lengths.tolist(), strict=True)]
        for unit in range(len(units))
        for ids, lengths, _ in [units.select(unit, unit + 1).cut()]
    ]


def drawn(store, plan, *, strategy=Strategy.RANDOM, scores=None) -> list[list[tuple[int, ...]]]:
    """One step with everybody: the rows of each unit."""
    scores = scores if strategy.scored else None
    options = PrivateOptions(selection=strategy, scores=scores, unsafe_seeds=UnsafeSeeds(draws=1))
    collator = Collator(store, plan, options)
    return rows_in(collator(Sampler(plan.sampling, collator.counts, secret_generator(1)).draw()))


@pytest.mark.parametrize("strategy", fast_then_slow(list(Strategy)))
def test_invariant_3_no_selection_moves_the_sum_by_more_than_the_clip(scored, strategy):
    """Leave one user's unit out: what everybody else selected stays, whatever the strategy."""
    store, model, path, _ = scored
    plan = uls_plan(**EVERYBODY, cohort_size=100)
    units = drawn(store, plan, strategy=strategy, scores=path if strategy.scored else None)
    clip = 0.3

    def total(rows) -> ClippedSum:
        return clipped_sum(model, causal_lm_loss, Units.from_rows(rows), l2_clip_norm=clip)

    whole = total(units)
    for left_out in (0, 5):
        rest = total(units[:left_out] + units[left_out + 1 :])
        moved = sum(float((whole.value[n] - v).square().sum()) for n, v in rest.value.items())
        assert moved**0.5 <= clip


@pytest.mark.slow
def test_a_resumed_run_keeps_its_selection_and_its_scores(scored, store, tmp_path):
    _, _, path, _ = scored
    plan = uls_plan()

    def opened(**options):
        model = toy_model(store)
        return private_run(model, sgd(model), store, plan, out=tmp_path / "run", **options)

    chosen = {"selection": "highest-perplexity", "scores": path}
    with opened(**chosen) as private:
        next(iter(private))
    assert RunRecord.read(tmp_path / "run").facts["selection"] == "highest-perplexity"
    assert str(path) not in (tmp_path / "run" / "ledger.jsonl").read_text()
    for other in ({}, {"selection": "longest"}, {**chosen, "selection": "lowest-perplexity"}):
        with pytest.raises(UseError, match="the selection is not the one"):
            opened(resume=True, **other)
    with pytest.raises(UseError, match="needs a score"):
        opened(resume=True, selection="highest-perplexity")
    with opened(resume=True, **chosen) as private:
        for _ in range(plan.steps - 1):
            next(iter(private))
        assert private.remaining == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"selection": "best"}, "no selection"),
        ({"selection": "longest", "scores": "s"}, "scores say nothing"),
        ({"selection": "lowest-perplexity"}, "needs a score"),
    ],
)
def test_selections_that_mean_nothing_are_refused(scored, store, tmp_path, options, message):
    if "scores" in options:
        options = {**options, "scores": scored[2]}
    model = toy_model(store)
    with pytest.raises(UseError, match=message):
        private_run(model, sgd(model), store, uls_plan(), out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_scores_of_a_model_that_learned_from_people_are_refused(store, tmp_path):
    """Of this store or of another: what it learned would choose among other people's examples."""
    run = tmp_path / "run"
    train(store, uls_plan(population=100, steps=1), CONFIG, out=run)
    for place in (run / "model", shutil.copytree(run / "model", tmp_path / "copy")):
        with pytest.raises(UseError, match="trained on people's text"):
            score_store(store, str(place), tmp_path / "scores.arrow")
    assert not (tmp_path / "scores.arrow").exists()


# Parts of a cohort.


def sums_and_promises(run):
    """Of each step of ``run``: how many sums were made, and what the engine was told of it."""
    engine, told, steps = run.mechanism.engine, [], []

    def watched(*arguments, parts, **options):
        told.append(parts)
        return engine(*arguments, parts=parts, **options)

    run.mechanism.engine = watched
    with run as private:
        for _ in private:
            steps.append((len(told), set(told)))
            told.clear()
            run._of.optimizer.step()
    return steps


@pytest.mark.parametrize("ahead", [1, 1000])
def test_invariant_3_the_engine_is_told_of_how_many_sums_a_step_is(
    store, tmp_path, monkeypatch, ahead
):
    """By that number the rounding of each is limited (`userdp.gradients.engines.rounding`)."""
    monkeypatch.setattr(steps_module, "PASSES_AT_ONCE", ahead)
    model, plan = toy_model(store), uls_plan(**EVERYBODY, cohort_size=100)
    run = make_private(model, sgd(model), store, plan, out=tmp_path / "run", micro_batch=4)
    steps = sums_and_promises(run)
    assert all(promised == {made} for made, promised in steps)
    assert (max(made for made, _ in steps) > 1) == (ahead == 1)


def test_broken_twin_of_invariant_3_a_run_that_tells_of_one_sum_alone_is_caught(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(steps_module, "PASSES_AT_ONCE", 1)
    honest = steps_module.StepMechanism.clipping

    def one(self, *, sums=None):
        return honest(self, sums=1)

    monkeypatch.setattr(steps_module.StepMechanism, "clipping", one)
    model, plan = toy_model(store), uls_plan(**EVERYBODY, cohort_size=100)
    run = make_private(model, sgd(model), store, plan, out=tmp_path / "run", micro_batch=4)
    assert not all(promised == {made} for made, promised in sums_and_promises(run))


@pytest.mark.slow
def test_invariant_7_nothing_is_drawn_or_gathered_before_its_step_is_in_the_ledger(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(steps_module, "PASSES_AT_ONCE", 1)
    model = toy_model(store)
    plan = uls_plan(**EVERYBODY, cohort_size=100)
    events = []
    optimizer = sgd(model)
    run = make_private(model, optimizer, store, plan, out=tmp_path / "run", micro_batch=4)
    ledger = tmp_path / "run" / "ledger.jsonl"

    def watch(name, call):
        def watched(*arguments, **options):
            events.append((name, ledger.read_text().count('"kind":"attempt"')))
            return call(*arguments, **options)

        return watched

    run.mechanism.sampler.draw = watch("draw", run.mechanism.sampler.draw)
    run.mechanism.collator._split.gather = watch("gather", run.mechanism.collator._split.gather)
    with run as private:
        for step in private:
            assert gradient(model).isfinite().all()
            seen = [count for _, count in events]
            assert min(seen) == max(seen)  # every line of this step was there, and no later one
            assert len(events) > 3
            assert seen[0] == step.number
            events.clear()
            optimizer.step()
