"""What a run makes of its noisy gradients: updates, learning rates, an average of the weights.

Everything here sees only noisy gradients and public constants, so each is post-processing, free of
charge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_positive, require_probability
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
    groups = [group for group in groups if group["params"]]
    rate, betas = config.learning_rate, (0.9, 0.98)
    match config.optimizer:
        case OptimizerName.ADAMW:
            # One kernel for the whole update: on a CPU a quarter of the time.
            fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
            return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=fused)
        case OptimizerName.ADAM_BC:
            return AdamBC(groups, lr=rate, betas=betas, floor=config.bias_correction_floor)
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=rate, momentum=0.9)


def set_noise_std(optimizer: torch.optim.Optimizer, noise_std: float) -> None:
    """Tell an optimizer that corrects for it how much noise is in ``.grad``; a public number."""
    for group in optimizer.param_groups:
        if "noise_std" in group:
            group["noise_std"] = noise_std


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
    span = max(1, steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps - 1) / span)
    factor = {
        Schedule.FOLLOWING: 1.0,
        Schedule.CONSTANT: 1.0,
        Schedule.LINEAR: 1.0 - done,
        Schedule.COSINE: _FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * done)) / 2,
    }
    return config.learning_rate * factor[config.schedule]


class AdamBC(torch.optim.Optimizer):
    r"""AdamW whose second moment leaves out the variance that the noise added.

    The second moment of a noisy gradient estimates :math:`\mathbb{E}[g^2] + s^2`, where s is the
    noise's standard deviation, a public number. At the noise that user-level privacy needs, s² is
    most of it, and Adam's step sizes then depend hardly on g. What is subtracted here:

    .. math::
        v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \tilde g_t^2, \qquad
        n_t = \beta_2 n_{t-1} + (1 - \beta_2) s_t^2, \\
        \theta &\leftarrow \theta - \eta
        \frac{\hat m_t}{\sqrt{\max(\hat v_t - \hat n_t,\ f \hat n_t)} + \epsilon}

    :math:`n_t` equals s² while the noise is constant (the paper's case) and follows it where the
    clip norm adapts. The floor is a fraction f of the noise's own variance, so that it needs no
    tuning when the noise or the denominator changes (the paper has an absolute one): it keeps the
    noise in :math:`\hat m` from being blown up where :math:`\hat v_t` falls short of s² by chance.

    Guarantee: post-processing of noisy gradients and public constants. Without noise it is AdamW.

    Source: Tang et al. 2023, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias
    Correction)", Algorithm 1; Loshchilov & Hutter 2019 (decoupled weight decay).

    Args:
        params: parameters, or groups of them.
        lr: η.
        betas: of the two moments, each in [0, 1).
        floor: f, the least denominator in parts of the noise's variance; in (0, 1].
        eps: keeps the quotient finite where there is no noise; > 0.
        weight_decay: decoupled.
        noise_std: s, of the noise in ``.grad``: what noise was added to the sum, divided by its
            denominator. `make_private` sets it in every group at each step; 0 is plain AdamW.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        floor: float = 0.1,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        noise_std: float = 0.0,
    ) -> None:
        if not all(0 <= beta < 1 for beta in betas):
            raise UseError(f"betas must be in [0, 1), got {betas!r}")
        require_probability("floor", floor)
        require_positive("eps", eps)
        ours = {"floor": floor, "noise_std": noise_std, "step": 0, "noise_average": 0.0}
        usual = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, usual | ours)

    # torch types `step` by two overloads, of which no single signature is an override.
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the gradients in ``.grad``; a parameter without one stays as it is."""
        for group in self.param_groups:
            self._update(group)

    def _update(self, group: dict[str, Any]) -> None:
        if not 0 <= group["noise_std"] < math.inf:
            raise UseError(f"noise_std must be finite and at least 0, got {group['noise_std']!r}")
        held = [(p, p.grad) for p in group["params"] if p.grad is not None]
        if not held:
            return
        beta1, beta2 = group["betas"]
        group["step"] += 1
        group["noise_average"] += (1 - beta2) * (group["noise_std"] ** 2 - group["noise_average"])
        corrected = 1 - beta2 ** group["step"]
        noise = group["noise_average"] / corrected
        rate, decay = group["lr"], 1 - group["lr"] * group["weight_decay"]
        for parameter, gradient in held:
            state = self.state[parameter]
            first = state.setdefault("exp_avg", torch.zeros_like(parameter))
            second = state.setdefault("exp_avg_sq", torch.zeros_like(parameter))
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            scale = (second / corrected - noise).clamp_(min=group["floor"] * noise)
            scale.sqrt_().add_(group["eps"])
            parameter.mul_(decay)
            parameter.addcdiv_(first, scale, value=-rate / (1 - beta1 ** group["step"]))


class RateFollower:
    r"""A factor of the learning rate that follows the noisy gradients; free in ε.

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

    Guarantee: post-processing of noisy gradients and public constants.

    The factor is kept in the optimizer's groups, so that checkpoints hold it.

    Args:
        optimizer: one that keeps ``exp_avg``, the mean of its gradients.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups, self._state = optimizer.param_groups, optimizer.state

    def factor(self, *, noise_std: float, l2_norm: float) -> float:
        """The factor for the present step, whose gradients stand in ``.grad``.

        Args:
            noise_std: of the step (`userdp.training.step_mechanism.Step`).
            l2_norm: of the step, likewise.
        """
        pairs = [
            (parameter.grad, self._state[parameter]["exp_avg"])
            for group in self._groups
            for parameter in group["params"]
            if parameter.grad is not None and self._state.get(parameter)
        ]
        factor = float(self._groups[0].get("factor", 1.0))
        if pairs:
            unit = _SIGNAL * l2_norm**2
            product = sum(float(whole((grad * mean).sum())) for grad, mean in pairs) / unit
            length = math.sqrt(sum(float(whole(mean.square().sum())) for _, mean in pairs))
            by_chance = noise_std * length / unit  # of the product, a standard deviation
            change = _PACE * math.tanh(product) / (1 + by_chance**2) ** 2
            factor = min(_MOST, max(1 / _MOST, factor * math.exp(change)))
        for group in self._groups:
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
