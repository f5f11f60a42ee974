"""AdamBC of the studies is Adam without noise, and the paper's update with it."""

from __future__ import annotations

import torch

from papers.adam_bc import AdamBC

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


def test_without_noise_it_is_adam():
    ours = [*steps(lambda weights: AdamBC(weights, **HOW, noise_std=0.0))][-1]
    torch.testing.assert_close(ours, [*steps(lambda weights: torch.optim.Adam(weights, **HOW))][-1])


def test_with_noise_it_follows_the_papers_update_number_by_number():
    m = v = 0
    theta = None
    for t, (weight, _) in enumerate(steps(lambda w: AdamBC(w, **HOW, noise_std=0.8)), 1):
        theta = weight.detach().double().clone() if theta is None else theta
        torch.testing.assert_close(weight.detach().double(), theta, rtol=1e-5, atol=1e-6)
        g = weight.grad.double()
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        variance = (v / (1 - 0.98**t) - 0.8**2).clamp(min=0.1 * 0.8**2)
        theta = theta - 0.05 * (m / (1 - 0.9**t)) / (variance.sqrt() + 1e-8)
