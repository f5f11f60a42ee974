"""AdamBC: AdamW where there is no noise; where there is, its second moment is the signal's."""

import pytest
import torch

from tests.plans import changed_plan, uls_plan
from tests.training.test_loop import changed
from tests.training.toy import lines, toy_model
from userdp.core.clip import AdaptiveClipping
from userdp.training.adam_bc import AdamBC
from userdp.training.config import OptimizerName
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
    steps = [line["step"] for line in lines(tmp_path / "run" / "ledger.jsonl") if "step" in line]
    assert told == pytest.approx([step["noise_std"] / plan.denominator for step in steps])
    assert len(set(told)) == plan.steps
