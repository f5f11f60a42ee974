import pytest
import torch

import userdp
from tests.gradients.campaign import losses
from tests.gradients.campaign.models import HeadOnSelected
from tests.plans import els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import (
    attempts,
    cycles,
    lines,
    private_run,
    run_all,
    sgd,
    toy_model,
    toy_store,
    weights,
)
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.core.errors import FailureError, UseError
from userdp.data.splits import Split
from userdp.ledger import RunRecord, StoreLedger
from userdp.queries import release
from userdp.training.opening import OpenRun
from userdp.training.private import make_private


def test_the_readme_loop_runs_and_the_claim_is_the_plans(store, tmp_path):
    model, plan = toy_model(store), uls_plan()
    before = weights(model)
    seen = run_all(model, store.path, plan, tmp_path / "run")
    assert userdp.make_private is make_private
    assert [step.number for step, _ in seen] == [1, 2, 3, 4, 5]
    assert not torch.equal(weights(model), before)
    for path in (tmp_path / "run" / "ledger.jsonl", store.path):
        found = claim(path)
        assert found.guarantee == plan.guarantee()
        assert found.complete
    told = RunRecord.read(tmp_path / "run").facts["base_model"]
    assert (told["origin"], told["layers"], told["width"]) == ("memory", 1, 16)


def test_leaving_early_keeps_the_whole_plan_reserved(store, tmp_path):
    model, plan = toy_model(store), uls_plan()
    with make_private(model, sgd(model), store, plan, out=tmp_path / "run") as private:
        next(iter(private))
        with pytest.raises(UseError, match="4 planned steps have not run"):
            private.finish()
    assert claim(store.path).guarantee == plan.guarantee()
    assert not claim(store.path).complete
    stopped = claim(tmp_path / "run" / "ledger.jsonl")
    assert stopped.guarantee == plan.guarantee(), "when it stopped may have been chosen"
    assert stopped.so_far == plan.guarantee(1)


@pytest.mark.parametrize("what", fast_then_slow(["store", "plan", "model"]))
@pytest.mark.pitfall(number=8)
def test_invariant_7_a_changed_store_plan_or_model_refuses_to_resume(store, tmp_path, what):
    model, plan = toy_model(store), uls_plan()
    with make_private(model, sgd(model), store, plan, out=tmp_path / "run") as private:
        next(iter(private))
    if what == "store":
        store = toy_store(tmp_path / "other", cycles(40, seed=1))
    elif what == "plan":
        plan = uls_plan(noise_multiplier=1.0)
    else:
        model.transformer.wpe.weight.requires_grad_(False)
    with pytest.raises(UseError, match=f"the {what} is not the one"):
        make_private(model, sgd(model), store, plan, out=tmp_path / "run", resume=True)
    assert attempts(tmp_path / "run") == 1


@pytest.mark.parametrize("how", ["loaded", "by .data"])
def test_invariant_13_weights_that_came_after_the_opening_take_no_step(store, tmp_path, how):
    """What they had learned before, nobody was asked about."""
    model, other = toy_model(store), toy_model(store)
    torch.nn.init.normal_(other.transformer.wpe.weight)
    with make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run") as private:
        if how == "loaded":
            model.load_state_dict(other.state_dict())
        else:
            model.transformer.wpe.weight.data = other.transformer.wpe.weight.data
        for _ in range(2):  # a loop that catches the error gets no further
            with pytest.raises(UseError, match="not the weights that the run was begun with"):
                next(iter(private))
    assert attempts(tmp_path / "run") == 0


def test_invariant_13_a_resumed_run_goes_on_from_no_other_runs_model(store, tmp_path):
    other, model = toy_model(store), toy_model(store)
    with make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run") as private:
        next(iter(private))
    run_all(other, store.path, uls_plan(), tmp_path / "other")
    options = {"out": tmp_path / "run", "resume": True}
    with private_run(model, sgd(model), store, uls_plan(), **options) as private:
        model.load_state_dict(other.state_dict())
        with pytest.raises(UseError, match="released by another run"):
            next(iter(private))
    assert attempts(tmp_path / "run") == 1
    run_all(toy_model(store), store, uls_plan(), **options)


@pytest.mark.parametrize("resumed", [False, True])
def test_invariant_7_a_closed_run_takes_no_step(store, tmp_path, request, resumed):
    """Its file's number may be another file's by then, and its counter another process's."""
    model, out = toy_model(store), tmp_path / "run"
    with make_private(model, sgd(model), store, uls_plan(), out=out) as private:
        steps = iter(private)
        next(steps)
        private._of.optimizer.step()
    if resumed:
        other = private_run(model, sgd(model), store, uls_plan(), out=out, resume=True)
        request.addfinalizer(other.close)
    before = weights(model)
    for again in (steps, iter(private)):
        with pytest.raises(UseError, match="was closed"):
            next(again)
    assert torch.equal(weights(model), before)
    assert attempts(out) == 1


def steered_by(what, store, folder):
    """A loop that stops after a step, sees a release, and ends with a rate that it chose by it."""
    model, plan = toy_model(store), uls_plan()
    with make_private(model, sgd(model), store, plan, out=folder / "run") as private:
        next(iter(private))
    if what == "a run":
        run_all(toy_model(store), store.path, plan, folder / "other")
    else:
        release(store, epsilon=0.5)
    rate = torch.optim.SGD(model.parameters(), lr=0.3)
    with make_private(model, rate, store, plan, out=folder / "run", resume=True) as private:
        for _ in private:
            rate.step()
    return claim(folder / "run").guarantee.epsilon, plan.guarantee().epsilon


@pytest.mark.parametrize(("what", "price"), [("a run", None), ("an answer", 0.5)])
def test_invariant_13_what_is_released_while_a_loop_is_open_is_in_its_claim(
    store, tmp_path, what, price
):
    found, own = steered_by(what, store, tmp_path)
    assert found == pytest.approx(own + (own if price is None else price))
    assert claim(tmp_path / "run").guarantee == claim(store.path).guarantee


def test_invariant_13_twin_a_loops_claim_of_its_opening_is_caught(store, tmp_path, monkeypatch):
    monkeypatch.setattr(OpenRun, "steering", (Lineage(), ()))
    found, own = steered_by("an answer", store, tmp_path)
    assert found < own + 0.5


def test_invariant_13_a_run_begins_with_an_optimizer_that_took_no_step(store, tmp_path):
    """Its momentum may hold text that nobody paid for, as much as weights may."""
    model = toy_model(store)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.transformer.wpe.weight.sum().backward()
    optimizer.step()
    model.load_state_dict(before)
    with pytest.raises(UseError, match="state of earlier steps"):
        make_private(model, optimizer, store, uls_plan(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_invariant_13_a_run_without_a_step_goes_on_from_the_weights_it_was_begun_with(
    store, tmp_path
):
    """Else the hints "load the weights first" and "go on with --resume" drop a condition."""
    model, other, out = toy_model(store), toy_model(store), tmp_path / "run"
    torch.nn.init.normal_(other.transformer.wpe.weight)
    make_private(model, sgd(model), store, uls_plan(), out=out).close()
    with (
        make_private(other, sgd(other), store, uls_plan(), out=out, resume=True) as private,
        pytest.raises(UseError, match="not the weights that the run was begun with"),
    ):
        next(iter(private))
    assert attempts(out) == 0
    with make_private(model, sgd(model), store, uls_plan(), out=out, resume=True) as private:
        next(iter(private))
    assert attempts(out) == 1


# Pitfall 9: parameters that never move.


def refusals(store):
    model = toy_model(store)
    other = toy_model(store)
    parameters = list(model.parameters())
    yield model, sgd(other), "does not hold"
    yield model, torch.optim.SGD(parameters[1:], lr=0.1), "does not hold 1 of"
    yield model, torch.optim.SGD([*parameters, other.transformer.wpe.weight], lr=0.1), "holds 1"


def test_an_optimizer_of_other_parameters_is_refused_and_nothing_is_charged(store, tmp_path):
    for model, optimizer, message in refusals(store):
        with pytest.raises(UseError, match=message):
            make_private(model, optimizer, store, uls_plan(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).charges() == []


@pytest.mark.pitfall(number=9)
def test_a_loop_that_never_updates_is_stopped_after_one_step(store, tmp_path):
    model = toy_model(store)
    with (
        pytest.raises(FailureError, match="no trainable parameter moved"),
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run") as private,
    ):
        for _ in private:
            pass
    assert attempts(tmp_path / "run") == 1


# Rows.


@pytest.mark.parametrize("capped", [True, False])
def test_invariant_10_examples_over_the_cap_are_counted_for_the_operator(store, tmp_path, capped):
    plan = els_plan(group_size=2, population=60, batch_size=60) if capped else uls_plan()
    model, folder = toy_model(store), tmp_path / "run"
    with private_run(model, sgd(model), store, plan, out=folder, exact_log=True):
        pass
    (line,) = (line for line in lines(folder / "operator.jsonl") if line["kind"] == "selection")
    over = (store.split(Split.TRAIN).counts - 2).clip(min=0).sum()
    assert over > 0
    assert line["examples_over_the_cap"] == (over if capped else 0)


# Invariant 3, sensitivity: what one user moves, from the store to the gradient.


def test_invariant_3_a_step_under_autocast_is_refused_before_it_is_charged(store, tmp_path):
    model = toy_model(store)
    with make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run") as private:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            pytest.raises(UseError, match="around a private gradient"),
        ):
            next(iter(private))
        assert attempts(tmp_path / "run") == 0


@pytest.mark.pitfall(number=11)
def test_invariant_3_a_loss_over_the_batch_is_refused_before_anything_is_charged(store, tmp_path):
    model = HeadOnSelected()
    with pytest.raises(UseError, match="on made-up rows"):
        make_private(
            model,
            sgd(model),
            store,
            uls_plan(),
            out=tmp_path / "run",
            loss=losses.selected_over_batch,
        )
    assert not (tmp_path / "run").exists()
    assert not (store.path / "ledger.jsonl").exists()
