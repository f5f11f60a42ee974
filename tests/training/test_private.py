"""`make_private`: the loop of the README, what refuses it, and what it leaves in the ledgers."""

from dataclasses import replace

import pytest
import torch

import userdp
from tests.plans import els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import attempts, cycles, lines, sgd, take, toy_model, toy_store, weights
from userdp.claims import claim
from userdp.core.errors import FailureError, UseError
from userdp.data.splits import Split
from userdp.ledger import RunRecord
from userdp.training.config import PrivateOptions
from userdp.training.private_run import make_private

PLAN = uls_plan()


def test_the_readme_loop_runs_and_the_claim_is_the_plans(store, tmp_path):
    model = toy_model(store)
    optimizer, before, run = sgd(model), weights(model), tmp_path / "run"
    with userdp.make_private(model, optimizer, store.path, PLAN, out=run) as private:
        numbers = [(step.number, optimizer.step()) for step in private]
    assert userdp.make_private is make_private
    assert [number for number, _ in numbers] == [1, 2, 3, 4, 5]
    assert not torch.equal(weights(model), before)
    for path in (run / "ledger.jsonl", store.path):
        assert claim(path).guarantee == PLAN.guarantee()
        assert claim(path).complete
    told = RunRecord.read(run).begin.facts["base_model"]
    assert (told["origin"], told["layers"], told["width"]) == ("memory", 1, 16)


def test_leaving_early_keeps_the_whole_plan_reserved(store, begin, tmp_path):
    with begin() as private:
        take(private, 1)
        with pytest.raises(UseError, match="4 planned steps have not run"):
            private.finish()
    assert claim(store.path).guarantee == PLAN.guarantee()
    assert not claim(store.path).complete
    stopped = claim(tmp_path / "run" / "ledger.jsonl")
    assert stopped.guarantee == PLAN.guarantee(), "when it stopped may have been chosen"
    assert stopped.so_far == PLAN.guarantee(1)


@pytest.mark.parametrize(
    "what", fast_then_slow(["store", "frozen weights", "plan", "model", "selection"], fast=2)
)
@pytest.mark.pitfall(number=8)
def test_invariant_7_a_changed_store_plan_or_model_refuses_to_resume(begin, store, tmp_path, what):
    model, out, how = toy_model(store), tmp_path / "run", {"plan": PLAN}
    resumed = PrivateOptions(resume=True)
    last = model.transformer.ln_f.weight.requires_grad_(False)
    with begin(model=model) as private:
        take(private, 1)
    if what == "store":
        store = toy_store(tmp_path / "other", cycles(40, seed=1))
    elif what == "plan":
        how["plan"] = uls_plan(noise_multiplier=1.0)
    elif what == "model":
        model.transformer.wpe.weight.requires_grad_(False)
    elif what == "selection":
        resumed = replace(resumed, selection="longest")
    else:
        last += 1
    with pytest.raises(UseError, match=f"the {what} (is|are) not"):
        make_private(model, sgd(model), store, out=out, options=resumed, **how)
    assert attempts(out) == 1


@pytest.mark.parametrize("resumed", [False, True])
def test_invariant_7_a_closed_run_takes_no_step(begin, tmp_path, request, resumed):
    """Its file's number may be another file's by then, and its counter another process's."""
    with begin() as private:
        steps = iter(private)
        next(steps)
        private._of.optimizer.step()
    model = private._of.model
    if resumed:
        request.addfinalizer(begin(model=model, resume=True).close)
    before = weights(model)
    for again in (steps, iter(private)):
        with pytest.raises(UseError, match="was closed"):
            next(again)
    assert torch.equal(weights(model), before)
    assert attempts(tmp_path / "run") == 1


@pytest.mark.pitfall(number=9)
def test_a_loop_that_never_updates_is_stopped_after_one_step(begin, tmp_path):
    with begin() as private, pytest.raises(FailureError, match="no trainable parameter moved"):
        list(private)
    assert attempts(tmp_path / "run") == 1


@pytest.mark.parametrize("capped", [True, False])
def test_invariant_10_examples_over_the_cap_are_counted_for_the_operator(
    store, begin, tmp_path, capped
):
    begin(els_plan(group_size=2, population=60, batch_size=60) if capped else PLAN, exact_log=True)
    entries = lines(tmp_path / "run" / "operator.jsonl")
    (line,) = (line for line in entries if line["kind"] == "selection")
    over = (store.split(Split.TRAIN).counts - 2).clip(min=0).sum()
    assert over > 0
    assert line["examples_over_the_cap"] == (over if capped else 0)


def test_invariant_3_a_step_under_autocast_is_refused_before_it_is_charged(begin, tmp_path):
    with begin() as private, torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(UseError, match="around a private gradient"):
            next(iter(private))
        assert attempts(tmp_path / "run") == 0
