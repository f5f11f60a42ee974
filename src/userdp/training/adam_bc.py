r"""AdamW whose second moment leaves out the variance that the noise added.

The second moment of a noisy gradient estimates :math:`\mathbb{E}[g^2] + s^2`, where s is the
noise's standard deviation, a public number. At the noise that user-level privacy needs, s² is most
of it, and Adam's step sizes then depend hardly on g. What is subtracted here:

.. math::
    v_t = \beta_2 v_{t-1} + (1 - \beta_2) \tilde g_t^2, \qquad
    n_t = \beta_2 n_{t-1} + (1 - \beta_2) s_t^2, \qquad
    \theta \leftarrow \theta - \eta \frac{\hat m_t}{\sqrt{\max(\hat v_t - \hat n_t,\ f \hat n_t)}
    + \epsilon}

:math:`n_t` equals s² while the noise is constant (the paper's case) and follows it where the clip
norm adapts. The floor is a fraction f of the noise's own variance, so that it needs no tuning when
the noise or the denominator changes (the paper has an absolute one): it keeps the noise in
:math:`\hat m` from being blown up where :math:`\hat v_t` falls short of s² by chance.

Guarantee: post-processing of noisy gradients and public constants. Without noise it is AdamW.

Source: Tang et al. 2023, "DP-AdamBC: Your DP-Adam Is Actually DP-SGD (Unless You Apply Bias
Correction)", Algorithm 1; Loshchilov & Hutter 2019 (decoupled weight decay).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_positive, require_probability


class AdamBC(torch.optim.Optimizer):
    """DP-AdamBC.

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
