"""AdamBC: AdamW where there is no noise; where there is, its second moment is the signal's."""

from dataclasses import replace

import pytest
import torch

from tests.plans import changed_plan, uls_plan
from tests.training.toy import CONFIG, gradient, lines, toy_model
from userdp.core.clip import AdaptiveClipping
from userdp.training.adam_bc import AdamBC
from userdp.training.config import OptimizerName
from userdp.training.optimizers import build_optimizer

HOW = {"lr": 0.05, "betas": (0.9, 0.98)}


def steps(make):
    """Seven steps from one start by the same gradients."""
    draw = torch.Generator().manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((3, 4), (5,))]
    optimizer = make(weights)
    for _ in range(7):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=draw)
        yield weights
        optimizer.step()
    yield weights


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_noise_it_is_adamw(decay):
    ours, theirs = (
        [*steps(lambda weights, kind=kind: kind(weights, **HOW, weight_decay=decay))][-1]
        for kind in (AdamBC, torch.optim.AdamW)
    )
    torch.testing.assert_close(ours, theirs)


def test_with_noise_it_follows_the_papers_update_number_by_number():
    m = v = 0
    theta = None
    for t, (weight, _) in enumerate(steps(lambda w: AdamBC(w, **HOW, floor=0.1, noise_std=0.8)), 1):
        theta = weight.detach().double().clone() if theta is None else theta
        torch.testing.assert_close(weight.detach().double(), theta, rtol=1e-5, atol=1e-6)
        g = weight.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        variance = (v / (1 - 0.98**t) - 0.8**2).clamp(min=0.1 * 0.8**2)
        theta = theta - 0.05 * (m / (1 - 0.9**t)) / (variance.sqrt() + 1e-8)


def test_a_private_run_tells_the_optimizer_the_noise_in_its_gradients(store, begin, tmp_path):
    """Nobody is drawn, so that .grad is noise alone, at a clip norm that moves."""
    plan = changed_plan(
        uls_plan(population=10**12, target_delta=1e-14, cohort_size=50),
        adaptive=AdaptiveClipping(count_noise_std=5.0, learning_rate=1.0),
    )
    model, told = toy_model(store), []
    optimizer = build_optimizer(model, replace(CONFIG, optimizer=OptimizerName.ADAM_BC))
    with begin(plan, model=model, optimizer=optimizer) as private:
        for _ in private:
            told.append(optimizer.param_groups[0]["noise_std"])
            assert float(gradient(model).std()) == pytest.approx(told[-1], rel=0.05)
            optimizer.step()
    charged = [line["step"] for line in lines(tmp_path / "run" / "ledger.jsonl") if "step" in line]
    assert told == pytest.approx([step["noise_std"] / plan.denominator for step in charged])
    assert len(set(told)) == plan.steps
