"""What a run makes of its noisy gradients: the rate that follows them."""

from __future__ import annotations

import math

import pytest
import torch

from tests.plans import changed_plan, uls_plan
from tests.training.toy import CONFIG, gradient, lines, toy_model
from userdp.core.errors import UseError
from userdp.noise.clip_forms import AdaptiveClipping
from userdp.training.config import Averaging, OptimizerName, Schedule, TrainConfig
from userdp.training.optimizers import build_optimizer, following_factor

STEPS, SIZE, CLIP = 60, 400, 0.1


def test_words_stand_for_settings():
    words = TrainConfig(averaging="ema", schedule="following", optimizer="adamw")
    assert words.averaging is Averaging.EMA
    assert words.schedule is Schedule.FOLLOWING
    with pytest.raises(UseError, match="cosin"):
        TrainConfig(schedule="cosin")


def follow(*, rate: float, noise: float = 0.0, factor: float = 1.0) -> list[float]:
    """The factors of a run down a bowl whose gradients have at most the length of the clip norm.

    ``factor`` multiplies loss, clip and noise alike.
    """
    draws = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(SIZE, 1, bias=False)
    torch.nn.init.constant_(model.weight, 0.0)
    optimizer = build_optimizer(model, TrainConfig(learning_rate=rate))
    factors = []
    for _ in range(STEPS):
        grad = model.weight.detach() - 1.0
        grad *= min(1.0, CLIP / float(grad.norm()))
        grad += noise * CLIP * torch.randn(grad.shape, generator=draws)
        model.weight.grad = grad * factor
        noise_std, l2_norm = noise * CLIP * factor, CLIP * factor
        factors.append(following_factor(optimizer, noise_std=noise_std, l2_norm=l2_norm))
        for group in optimizer.param_groups:
            group["lr"] = rate * factors[-1]
        optimizer.step()
    return factors


def test_the_rate_rises_while_gradients_agree_and_falls_where_steps_overshoot() -> None:
    assert follow(rate=1e-4)[-1] == pytest.approx(4.0)  # far from the bottom: to the bound
    assert follow(rate=1.0)[-1] < 0.5  # each step leaps over it
    assert follow(rate=0.3, noise=0.02)[-1] < 0.5  # the noise outweighs what is left to learn


def test_noise_that_hides_the_gradients_leaves_the_rate() -> None:
    assert all(abs(math.log(factor)) < 0.05 for factor in follow(rate=1e-4, noise=1.0))


def test_the_unit_of_the_gradients_does_not_matter() -> None:
    """A divided clip makes C one, and a run with an adaptive clip changes it."""
    one, other = follow(rate=1e-3, noise=0.01), follow(rate=1e-3, noise=0.01, factor=1 / CLIP)
    assert one == pytest.approx(other, rel=1e-3)


def test_the_factor_is_in_the_optimizers_state_and_so_in_its_checkpoints() -> None:
    model = torch.nn.Linear(SIZE, 1, bias=False)
    optimizer = build_optimizer(model, TrainConfig())
    for _ in range(3):
        model.weight.grad = torch.full((1, SIZE), CLIP / SIZE**0.5)
        factor = following_factor(optimizer, noise_std=0.0, l2_norm=CLIP)
        optimizer.step()
    again = build_optimizer(model, TrainConfig())
    again.load_state_dict(optimizer.state_dict())
    model.weight.grad = torch.zeros(1, SIZE)
    assert factor > 1
    assert following_factor(again, noise_std=0.0, l2_norm=CLIP) == factor


def test_a_rate_that_is_given_stays_and_the_default_follows() -> None:
    assert TrainConfig().schedule is Schedule.FOLLOWING
    assert TrainConfig(lora_rank=4).schedule is Schedule.FOLLOWING
    assert TrainConfig(learning_rate=1e-3).schedule is Schedule.CONSTANT
    assert TrainConfig(optimizer=OptimizerName.SGD).schedule is Schedule.CONSTANT
    with pytest.raises(UseError, match="mean of earlier gradients, and sgd keeps none"):
        TrainConfig(optimizer=OptimizerName.SGD, schedule=Schedule.FOLLOWING)


def test_a_step_tells_the_loop_the_noise_in_its_gradients(store, begin, tmp_path):
    """Nobody is drawn, so that .grad is noise alone, at a clip norm that moves."""
    plan = changed_plan(
        uls_plan(population=10**12, target_delta=1e-14, cohort_size=50),
        adaptive=AdaptiveClipping(count_noise_std=5.0, learning_rate=1.0),
    )
    model, told = toy_model(store), []
    optimizer = build_optimizer(model, CONFIG)
    with begin(plan, model=model, optimizer=optimizer) as private:
        for step in private:
            told.append(step.noise_std)
            assert float(gradient(model).std()) == pytest.approx(told[-1], rel=0.05)
            optimizer.step()
    charged = [line["step"] for line in lines(tmp_path / "run" / "ledger.jsonl") if "step" in line]
    assert told == pytest.approx([step["noise_std"] / plan.denominator for step in charged])
    assert len(set(told)) == plan.steps
