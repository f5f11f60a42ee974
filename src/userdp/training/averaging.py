"""Exponential moving average of the weights: post-processing of the noisy updates, so free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from userdp.gradients import trainable_parameters
from userdp.plans import Plan
from userdp.training.config import Averaging, PlainPlan, TrainConfig

LITTLE_NOISE = 2e-3
"""σ / M up to which an average gains by default. At more noise the weights still learn so much in
the last steps that an average lags behind (docs/results/recipe.md)."""


class WeightAverage:
    r"""Keeps :math:`a_t = d_t a_{t-1} + (1 - d_t) \theta_t`.

    :math:`d_t = \min(d, (1 + t) / (10 + t))`, so that early averages forget the start quickly.

    Args:
        model: whose trainable parameters are averaged, in float32.
        decay: d; None averages nothing, and the weights stay their own.

    Attributes:
        values: the average, by parameter name.
        updates: how many weights were averaged.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        self._parameters = {} if decay is None else trainable_parameters(model)
        self._decay, self.updates = decay or 0.0, 0
        self.values = {n: p.detach().float().clone() for n, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Average the present weights in."""
        self.updates += 1
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in self._parameters.items():
            self.values[name].lerp_(parameter.detach().float(), 1 - decay)

    def apply(self) -> None:
        """Put the average into the model, for good."""
        _assign(self._parameters, self.values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model carries the average inside the block, and its own weights again after."""
        own = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            _assign(self._parameters, self.values)
            yield
        finally:
            _assign(self._parameters, own)


def build_average(model: nn.Module, config: TrainConfig, plan: Plan | PlainPlan) -> WeightAverage:
    """The moving average that the configuration asks for, or that the plan's noise suggests."""
    averages = config.averaging is Averaging.EMA
    if config.averaging is Averaging.AUTO and isinstance(plan, Plan):
        averages = plan.sum_noise_multiplier / plan.denominator <= LITTLE_NOISE
    return WeightAverage(model, config.averaging_decay if averages else None)


@torch.no_grad()
def _assign(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name].to(parameter.dtype))
