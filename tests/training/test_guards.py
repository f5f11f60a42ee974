"""Invariants 7 and 13 of a loop: it releases what its own steps learned, as its claim tells."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import attempts, moved, sgd, take, toy_model, trained, weights
from userdp.claims import claim
from userdp.claims.lineage import ConditionKind, Lineage
from userdp.core.errors import UseError
from userdp.gradients import causal_lm_loss
from userdp.ledger import StoreLedger
from userdp.ledger.run_ledger import RunRecord, is_finished
from userdp.queries import release
from userdp.training.config import UnsafeSeeds
from userdp.training.open_run import OpenRun
from userdp.training.optimizer_guards import HeldModel, KnownWeights

PLAN = uls_plan()


# Weights of another origin.


def test_invariant_13_weights_that_came_after_the_opening_take_no_step(begin, store, tmp_path):
    """What they had learned before, nobody was asked about."""
    with begin() as private:
        private._of.model.load_state_dict(moved(toy_model(store)).state_dict())
        for _ in range(2):  # a loop that catches the error gets no further
            with pytest.raises(UseError, match="not the weights that the run was begun with"):
                next(iter(private))
    assert attempts(tmp_path / "run") == 0


def test_invariant_13_a_run_without_a_step_goes_on_from_the_weights_it_was_begun_with(
    begin, store, tmp_path
):
    """Else the hints "load the weights first" and "go on with --resume" drop a condition."""
    first = begin()
    first.close()
    refused = pytest.raises(UseError, match="not the weights that the run was begun with")
    with begin(model=moved(toy_model(store)), resume=True) as private, refused:
        next(iter(private))
    with begin(model=first._of.model, resume=True) as private:
        take(private, 1)
    assert attempts(tmp_path / "run") == 1


def test_invariant_13_a_resumed_run_goes_on_from_no_other_runs_model(begin, store, tmp_path):
    with begin() as private:
        take(private, 1)
    other, model = toy_model(store), private._of.model
    trained(other, store.path, tmp_path / "other", save=False)
    with begin(model=model, resume=True) as private:
        model.load_state_dict(other.state_dict())
        with pytest.raises(UseError, match="released by another run"):
            next(iter(private))
    assert attempts(tmp_path / "run") == 1
    with begin(resume=True) as private:
        assert len(take(private)) == 4


@pytest.mark.slow
def test_invariant_13_a_resumed_run_without_steps_saves_no_other_runs_model(begin, store, tmp_path):
    private = begin()
    take(private)
    private.close()
    other, model = toy_model(store), private._of.model
    trained(other, store.path, tmp_path / "other", save=False)
    with begin(model=model, resume=True) as private:
        model.load_state_dict(other.state_dict())
        for save in (private.save, private.finish, private.save):
            with pytest.raises(UseError, match="released by another run"):
                save()
        private.close()
    assert not is_finished(tmp_path / "run")


# Weights that do not train.


def half_frozen(store):
    """Its positions do not train."""
    model = toy_model(store)
    model.transformer.wpe.requires_grad_(False)
    return model


def test_who_unfreezes_between_steps_is_refused_before_the_next_charge(begin, store, tmp_path):
    with begin(model=half_frozen(store)) as private:
        steps, model = iter(private), private._of.model
        next(steps)
        model.transformer.wpe.requires_grad_(True)
        with pytest.raises(UseError, match="other parameters train"):
            next(steps)
    assert attempts(tmp_path / "run") == 1


def run_of_half(begin, store, at_end):
    with begin(model=half_frozen(store)) as private:
        take(private)
        at_end(private._of.model)
        private.save()


@pytest.mark.parametrize("twin", [False, True], ids=["honest", "twin that does not ask"])
def test_invariant_13_frozen_weights_that_learned_are_not_released(
    begin, store, tmp_path, monkeypatch, twin
):
    if twin:
        monkeypatch.setattr(KnownWeights, "_frozen_of", lambda self, digests: "the same")
    with nullcontext() if twin else pytest.raises(UseError, match="does not train have changed"):
        run_of_half(begin, store, moved)
    assert (tmp_path / "run" / "model").exists() == twin


# What else happens while a loop is open.


def test_invariant_13_a_look_while_a_loop_is_open_is_a_condition(begin, store, tmp_path):
    run_of_half(begin, store, lambda model: StoreLedger(store.path).look("evaluate"))
    assert ConditionKind.LOOKS in {one.kind for one in claim(tmp_path / "run").conditions}


@pytest.mark.parametrize("what", ["a run", "an answer", "an answer, twin of the opening alone"])
def test_invariant_13_what_is_released_while_a_loop_is_open_is_in_its_claim(
    begin, store, tmp_path, monkeypatch, what
):
    """A loop that stops after a step, sees a release, and ends with a rate that it chose by it."""
    if "twin" in what:
        monkeypatch.setattr(OpenRun, "steering", Lineage())
    with begin() as private:
        take(private, 1)
    if what == "a run":
        trained(toy_model(store), store.path, tmp_path / "other", PLAN, save=False)
    else:
        release(store, epsilon=0.5)
    model, own = private._of.model, PLAN.guarantee().epsilon
    with begin(model=model, optimizer=sgd(model, 0.3), resume=True) as private:
        take(private)
    found = claim(tmp_path / "run").guarantee
    assert found.epsilon == pytest.approx(own + {"a run": own, "an answer": 0.5}.get(what, 0))
    assert (found == claim(store.path).guarantee) == ("twin" not in what)


# One model trains in one private run at a time.


def test_invariant_13_a_model_that_an_open_run_trains_is_refused_before_the_charge(begin, store):
    with begin(name="outer") as outer:
        take(outer, 1)
        model = outer._of.model
        with pytest.raises(UseError, match="another private run of this process is open"):
            begin(model=model, name="inner")
        take(outer)
    (charge,) = StoreLedger(store.path).history().charges.values()
    assert charge.run_id == RunRecord.read(outer.folder.path).run_id
    begin(model=model, name="later").close()


def exact_loss(model):
    """Of three people's text, as a loop without privacy computes it."""
    rows = torch.tensor([[2, 3, 4, 5], [9, 10, 11, 12], [20, 21, 22, 23]])
    return causal_lm_loss(model, rows, torch.full((3,), 4)).mean()


def left_over(model, optimizer):
    exact_loss(model).backward()
    optimizer.step()


def after_zero_grad(model, optimizer):
    optimizer.step()
    optimizer.zero_grad()
    left_over(model, optimizer)


def error_is_caught(model, optimizer):
    with pytest.raises(UseError, match="a backward pass added"):
        exact_loss(model).backward()
    optimizer.step()


def moved_beside_the_noise(begin, turn):
    """What refuses ``turn``, if it is; the weights before and after, and after an honest step."""
    how = {"plan": uls_plan(steps=1), "unsafe_seeds": UnsafeSeeds(draws=1, noise=2)}
    with begin(name="honest", **how) as honest:
        take(honest)
    refused = None
    with begin(**how) as private:
        model = private._of.model
        before = weights(model)
        try:
            for _ in private:
                turn(model, private._of.optimizer)
        except UseError as error:
            refused = error
    return refused, before, weights(model), weights(honest._of.model)


@pytest.mark.parametrize(
    "turn", fast_then_slow([left_over, error_is_caught, after_zero_grad], fast=2)
)
def test_invariant_7_a_stray_backward_is_refused_before_its_update(begin, turn):
    refused, before, stray, honest = moved_beside_the_noise(begin, turn)
    if turn is error_is_caught:
        assert refused is None
        assert bool(((stray == before) | (stray == honest)).all())
        return
    assert "backward pass" in refused.message
    assert "loss.backward()" in refused.hint
    updated = honest if turn is after_zero_grad else before
    assert torch.equal(stray, updated), "no exact gradient is in the weights"


def test_invariant_7_twin_without_the_hooks_the_exact_gradient_is_caught_in_the_weights(
    begin, monkeypatch
):
    always = property(lambda self: True, lambda self, own: None)
    monkeypatch.setattr(HeldModel, "_own", always, raising=False)
    with begin(name="exact") as private:
        model = private._of.model
        exact = torch.autograd.grad(exact_loss(model), [*model.parameters()])
    refused, _, stray, honest = moved_beside_the_noise(begin, left_over)
    moved = 0.1 * torch.cat([gradient.flatten() for gradient in exact])
    assert refused is None
    assert float((stray - honest + moved).norm() / moved.norm()) < 1e-3
