"""What a run makes of its noisy gradients: updates, learning rates, an average of the weights.

Everything here sees only noisy gradients and public constants, so each is post-processing, free of
charge.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from userdp.gradients import trainable_parameters
from userdp.gradients.shards import whole
from userdp.plans import Plan
from userdp.training.config import Averaging, OptimizerName, PlainPlan, Schedule, TrainConfig

_FLOOR = 0.05
"""Least rate of the cosine, in parts of the peak: at 0 the last step's epsilon buys nothing."""
_PACE = 0.1
"""The most that the logarithm of the rate moves in a step."""
_MOST = 4.0
"""The factor lies between its inverse and this: nothing outside was tried."""
_SIGNAL = 0.005
"""The unit of a product, in parts of C²: the square of the share of a clipped gradient that usually
points where other people's point."""
LITTLE_NOISE = 2e-3
"""σ / M up to which an average gains by default. At more noise the weights still learn so much in
the last steps that an average lags behind (docs/results/recipe.md)."""


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer over exactly the model's trainable parameters.

    Matrices decay, biases and norms do not: two groups, as is usual for language models.
    """
    parameters = list(trainable_parameters(model).values())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    rate, betas = config.learning_rate, (0.9, 0.98)
    match config.optimizer:
        case OptimizerName.ADAMW:
            # One kernel for the whole update: on a CPU a quarter of the time.
            fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
            return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=fused)
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=rate, momentum=0.9)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use ``rate`` in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(config: TrainConfig, *, step: int, steps: int) -> float:
    """The rate of step ``step`` (from 1) of ``steps``; greater than 0 at every one.

    >>> config = TrainConfig(learning_rate=1.0, warmup_steps=2, schedule=Schedule.LINEAR)
    >>> [learning_rate(config, step=t, steps=6) for t in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = min(1.0, (step - config.warmup_steps - 1) / max(1, steps - config.warmup_steps))
    factor = {
        Schedule.FOLLOWING: 1.0,
        Schedule.CONSTANT: 1.0,
        Schedule.LINEAR: 1.0 - done,
        Schedule.COSINE: _FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * done)) / 2,
    }
    return config.learning_rate * factor[config.schedule]


def following_factor(
    optimizer: torch.optim.Optimizer, *, noise_std: float, l2_norm: float
) -> float:
    r"""A factor of the learning rate of the present step that follows the noisy gradients.

    With :math:`m_{t-1}` the optimizer's mean of earlier noisy gradients, along which the weights
    have moved, :math:`\langle \tilde g_t, m_{t-1} \rangle` tells, up to a positive factor, how much
    less the loss would be now if the last steps had been a little longer: the hypergradient of
    Baydin et al. 2018, "Online Learning Rate Adaptation with Hypergradient Descent", equation 5. It
    is positive while the gradients of new cohorts agree with the way that the weights have gone. It
    is negative where steps overshoot, or the noise in them has done more harm than their signal has
    done good. The noise of step t itself adds nothing on average, and how much it adds by chance is
    known.

    The logarithm of the rate moves a little in each step: by at most `_PACE`, and by less where
    noise hides the product. Measured in ``docs/results/recipe.md``.

    Guarantee: post-processing of noisy gradients and public constants, free in ε.

    The factor is kept in the optimizer's groups, so that checkpoints hold it.

    Args:
        optimizer: one that keeps ``exp_avg``, the mean of its gradients; those of the present step
            stand in ``.grad``.
        noise_std: of the step (`userdp.training.step_mechanism.Step`).
        l2_norm: of the step, likewise.
    """
    groups, state = optimizer.param_groups, optimizer.state
    pairs = [
        (parameter.grad, state[parameter]["exp_avg"])
        for group in groups
        for parameter in group["params"]
        if parameter.grad is not None and state.get(parameter)
    ]
    factor = float(groups[0].get("factor", 1.0))
    if pairs:
        unit = _SIGNAL * l2_norm**2
        product = sum(float(whole((grad * mean).sum())) for grad, mean in pairs) / unit
        length = math.sqrt(sum(float(whole(mean.square().sum())) for _, mean in pairs))
        # Squared is the standard deviation that the product has by chance alone.
        change = _PACE * math.tanh(product) / (1 + (noise_std * length / unit) ** 2) ** 2
        factor = min(_MOST, max(1 / _MOST, factor * math.exp(change)))
    for group in groups:
        group["factor"] = factor
    return factor


class WeightAverage:
    r"""Moving average of the weights, :math:`a_t = d_t a_{t-1} + (1 - d_t) \theta_t`.

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
