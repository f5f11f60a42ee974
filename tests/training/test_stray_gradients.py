"""A `loss.backward()` that was left in the loop of a private run, and what a loop may do."""

import pytest
import torch

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import take, weights
from userdp.core.errors import UseError
from userdp.gradients import causal_lm_loss
from userdp.training.config import UnsafeSeeds
from userdp.training.guards import HeldModel


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
