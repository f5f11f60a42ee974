r"""DP-AdamBC, which two studies compare with AdamW. They found no gain: userdp does not offer it.

The second moment of a noisy gradient estimates :math:`\mathbb{E}[g^2] + s^2`, where s is the
noise's standard deviation, a public number. At the noise that user-level privacy needs, s² is most
of it, and Adam's step sizes then depend hardly on g. DP-AdamBC subtracts it:

.. math::
    v_t &= \beta_2 v_{t-1} + (1 - \beta_2) \tilde g_t^2, \\
    \theta &\leftarrow \theta - \eta
    \frac{\hat m_t}{\sqrt{\max(\hat v_t - s^2,\ f s^2)} + \epsilon}

The floor is a fraction f of the noise's own variance, so that it needs no tuning when the noise or
the denominator changes (the paper has an absolute one).

Source: Tang et al. 2023, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias
Correction)", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from userdp.gradients import trainable_parameters
from userdp.training.config import TrainConfig
from userdp.training.optimizers import build_optimizer

ADAM_BC = "adam-bc"
_FLOOR, _EPS = 0.1, 1e-8


class AdamBC(torch.optim.Optimizer):
    """Adam less the noise's share of the second moment; without noise it is Adam.

    Args:
        params: parameters, or groups of them.
        lr: η.
        noise_std: s, of the noise in ``.grad`` (`userdp.training.step_mechanism.Step.noise_std`).
        betas: of the two moments.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        noise_std: float,
        betas: tuple[float, float] = (0.9, 0.98),
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "step": 0})
        self._noise = noise_std**2

    # torch types `step` by two overloads, of which no single signature is an override.
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update from the gradients in ``.grad``."""
        for group in self.param_groups:
            group["step"] += 1
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                first = state.setdefault("exp_avg", torch.zeros_like(parameter))
                second = state.setdefault("exp_avg_sq", torch.zeros_like(parameter))
                first.lerp_(gradient, 1 - beta1)
                second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
                variance = second / (1 - beta2 ** group["step"]) - self._noise
                scale = variance.clamp_(min=_FLOOR * self._noise).sqrt_().add_(_EPS)
                rate = group["lr"] / (1 - beta1 ** group["step"])
                parameter.addcdiv_(first, scale, value=-rate)


def optimizer_named(
    model: nn.Module, config: TrainConfig, *, name: str, noise_std: float
) -> torch.optim.Optimizer:
    """AdamBC by its name, and the optimizer of the configuration by any other."""
    if name != ADAM_BC:
        return build_optimizer(model, config)
    parameters = trainable_parameters(model).values()
    return AdamBC(parameters, lr=config.learning_rate, noise_std=noise_std)
