"""A `loss.backward()` that was left in the loop of a private run, and what a loop may do."""

import pytest
import torch

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import private_run, sgd, toy_model, weights
from userdp.core.errors import UseError
from userdp.gradients import causal_lm_loss
from userdp.training.config import UnsafeSeeds
from userdp.training.stray_gradients import HeldModel

SEEDS = {"unsafe_seeds": UnsafeSeeds(draws=1, noise=2)}


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
    exact_loss(model).backward()
    optimizer.step()


def scaled(model, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(exact_loss(model)).backward()
    scaler.step(optimizer)


STRAYS = [left_over, after_zero_grad, scaled]


def moved_beside_the_noise(store, out, turn):
    """How far ``turn`` moves the weights from those of the private update alone, if not refused."""
    stray, honest = toy_model(store), toy_model(store)
    optimizer, other = sgd(stray), sgd(honest)
    plan = uls_plan(steps=1)
    for _ in private_run(honest, other, store, plan, out=out / "honest", **SEEDS):
        other.step()
    before = weights(stray)
    refused = None
    try:
        with private_run(stray, optimizer, store, plan, out=out / "stray", **SEEDS) as private:
            for _ in private:
                turn(stray, optimizer)
    except UseError as error:
        refused = error
    return refused, before, weights(stray), weights(honest)


@pytest.mark.parametrize("turn", fast_then_slow(STRAYS))
def test_invariant_7_a_stray_backward_is_refused_before_its_update(store, tmp_path, turn):
    refused, before, stray, honest = moved_beside_the_noise(store, tmp_path, turn)
    assert refused is not None
    assert "backward pass" in refused.message
    assert "loss.backward()" in refused.hint
    updated = honest if turn is after_zero_grad else before
    assert torch.equal(stray, updated), "no exact gradient is in the weights"


@pytest.mark.parametrize("turn", fast_then_slow([left_over, after_zero_grad, scaled]))
def test_invariant_7_twin_without_the_hooks_the_exact_gradient_is_caught_in_the_weights(
    store, tmp_path, monkeypatch, turn
):
    always = property(lambda self: True, lambda self, own: None)
    monkeypatch.setattr(HeldModel, "_own", always, raising=False)
    model = toy_model(store)
    refused, before, stray, honest = moved_beside_the_noise(store, tmp_path, turn)
    assert refused is None
    if turn is after_zero_grad:  # the second gradient is of the weights after the first update
        torch.nn.utils.vector_to_parameters(honest, model.parameters())
    exact = torch.cat(
        [g.flatten() for g in torch.autograd.grad(exact_loss(model), [*model.parameters()])]
    )
    if turn is scaled:
        honest = before  # the noisy gradient was divided by the scaler's 65,536, and all but gone
    assert float((stray - honest + 0.1 * exact).norm() / (0.1 * exact).norm()) < 1e-3


def error_is_caught(model, optimizer):
    with pytest.raises(UseError, match="a backward pass added"):
        exact_loss(model).backward()
    optimizer.step()


def test_invariant_7_a_loop_that_catches_the_error_applies_no_exact_gradient(store, tmp_path):
    refused, before, stray, honest = moved_beside_the_noise(store, tmp_path, error_is_caught)
    assert refused is None
    assert bool(((stray == before) | (stray == honest)).all())
