"""AdamBC: AdamW where there is no noise; where there is, its second moment is the signal's."""
# ruff: noqa: PT012  (what raises is a whole run, broken off inside)

import dataclasses
import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.plans import changed_plan, uls_plan
from tests.training.test_loop import changed, interrupt_at
from tests.training.toy import CONFIG, lines, toy_model
from userdp.clip import AdaptiveClipping
from userdp.errors import UseError
from userdp.training import loop
from userdp.training.adam_bc import AdamBC
from userdp.training.config import OptimizerName, UnsafeSeeds
from userdp.training.loop import train
from userdp.training.optimizers import build_optimizer
from userdp.training.private import make_private


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(3, 4)), torch.nn.Parameter(torch.randn(5))]


def steps(optimizer, weights, number=7):
    draw = torch.Generator().manual_seed(1)
    for _ in range(number):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=draw)
        optimizer.step()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_noise_it_is_adamw(decay):
    ours, theirs = parameters(), parameters()
    steps(AdamBC(ours, lr=0.05, betas=(0.9, 0.98), weight_decay=decay), ours)
    steps(torch.optim.AdamW(theirs, lr=0.05, betas=(0.9, 0.98), weight_decay=decay), theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_with_noise_it_follows_the_papers_update_number_by_number():
    (weight, _), draw = parameters(), torch.Generator().manual_seed(1)
    optimizer = AdamBC([weight], lr=0.05, betas=(0.9, 0.98), floor=0.1, noise_std=0.8)
    theta = weight.detach().double().clone()
    m, v = torch.zeros_like(theta), torch.zeros_like(theta)
    for t in range(1, 9):
        weight.grad = torch.randn(weight.shape, generator=draw)
        g = weight.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        variance = (v / (1 - 0.98**t) - 0.8**2).clamp(min=0.1 * 0.8**2)
        theta -= 0.05 * (m / (1 - 0.9**t)) / (variance.sqrt() + 1e-8)
        optimizer.step()
        torch.testing.assert_close(weight.detach().double(), theta, rtol=1e-5, atol=1e-6)


def rate_of_learning(noise_told):
    """Mean step along a gradient of 0.1 under noise of deviation 1, in learning rates."""
    weight = torch.nn.Parameter(torch.zeros(4000))
    optimizer = AdamBC([weight], lr=1.0, betas=(0.9, 0.999), floor=0.005, noise_std=noise_told)
    draw, before = torch.Generator().manual_seed(0), 0.0
    for t in range(1500):
        if t == 1000:
            before = float(weight.detach().mean())
        weight.grad = 0.1 + torch.randn(weight.shape, generator=draw)
        optimizer.step()
    return (before - float(weight.detach().mean())) / 500


@pytest.mark.slow
def test_the_noise_no_longer_sets_the_step_size():
    """Uncorrected, a step is g / √(g² + s²), a tenth; corrected, about g / |g|."""
    assert rate_of_learning(0.0) == pytest.approx(0.1, rel=0.1)
    assert rate_of_learning(1.0) > 0.6


def test_the_correction_follows_noise_that_changes():
    weight = torch.nn.Parameter(torch.zeros(20_000))
    optimizer = AdamBC([weight], lr=0.0, betas=(0.9, 0.98))
    draw = torch.Generator().manual_seed(0)
    for t in range(60):
        std = 0.5 if t < 50 else 2.0
        optimizer.param_groups[0]["noise_std"] = std
        weight.grad = std * torch.randn(weight.shape, generator=draw)
        optimizer.step()
    second = float(optimizer.state[weight]["exp_avg_sq"].mean())
    assert optimizer.param_groups[0]["noise_average"] == pytest.approx(second, rel=0.05)


def test_a_parameter_without_a_gradient_stays():
    first, second = parameters()
    kept = second.detach().clone()
    optimizer = AdamBC([first, second], lr=0.1)
    first.grad = torch.ones_like(first)
    optimizer.step()
    assert torch.equal(second, kept)


@pytest.mark.parametrize(
    "options",
    [{"floor": 0.0}, {"floor": math.nan}, {"floor": 2.0}, {"eps": 0.0}, {"betas": (0.9, 1.0)}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(UseError):
        AdamBC(parameters(), **options)


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_a_noise_that_is_not_a_deviation_is_refused(bad):
    weights = parameters()
    with pytest.raises(UseError, match="noise_std"):
        steps(AdamBC(weights, noise_std=bad), weights, number=1)


def test_a_private_run_tells_the_optimizer_the_noise_in_its_gradients(store, tmp_path):
    """Nobody is drawn, so that .grad is noise alone, at a clip norm that moves."""
    plan = changed_plan(
        uls_plan(population=10**12, target_delta=1e-14, cohort_size=50),
        adaptive=AdaptiveClipping(count_noise_std=5.0, learning_rate=1.0),
    )
    model = toy_model(store)
    optimizer = build_optimizer(model, changed(optimizer=OptimizerName.ADAM_BC))
    told = []
    with make_private(model, optimizer, store, plan, out=tmp_path / "run") as private:
        for _ in private:
            told.append(optimizer.param_groups[0]["noise_std"])
            found = torch.cat([p.grad.flatten() for p in model.parameters()]).std()
            assert float(found) == pytest.approx(told[-1], rel=0.05)
            optimizer.step()
    ledger = [line for line in lines(tmp_path / "run" / "ledger.jsonl") if "noise_std" in line]
    assert told == pytest.approx([line["noise_std"] / plan.denominator for line in ledger])
    assert len(set(told)) == plan.steps


@pytest.mark.slow
def test_its_state_survives_a_checkpoint(store, tmp_path, monkeypatch):
    config = changed(optimizer=OptimizerName.ADAM_BC, checkpoint_every=2, weight_decay=0.1)
    plan, seeds = (
        uls_plan(),
        {
            "unsafe_seeds": UnsafeSeeds(draws=1, noise=1),
        },
    )
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop._Notes, "step", interrupt_at(5))
        train(store, plan, config, out=tmp_path / "run", **seeds)
    path = tmp_path / "run" / "checkpoints" / "step-000000004.safetensors"
    with safe_open(path, "pt") as checkpoint:
        groups = json.loads(checkpoint.metadata()["facts"])["groups"]
    assert [group["step"] for group in groups] == [4] * len(groups)
    assert all(group["noise_average"] > 0 for group in groups)
    train(store, plan, config, out=tmp_path / "run", resume=True, **seeds)
    released = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(value.isfinite().all() for value in released.values())


def test_the_floor_has_a_range():
    with pytest.raises(UseError, match="floor"):
        dataclasses.replace(CONFIG, bias_correction_floor=0.0)
