r"""A learning rate that follows what the noisy gradients say of it; free in ε.

With :math:`m_{t-1}` the mean of earlier noisy gradients along which the weights have moved,
:math:`\langle \tilde g_t, m_{t-1} \rangle` is, up to a positive factor, how much the loss falls by
when the last steps had been a little longer (the hypergradient of Baydin et al. 2018, "Online
Learning Rate Adaptation with Hypergradient Descent", equation 5). It is positive while people's
gradients agree with the way gone, and negative where the steps overshoot, or the noise in them has
done more harm than their signal good. The noise of step t has no part in it on average.

Guarantee: post-processing of noisy gradients and public constants.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_PACE = 0.1
"""Most change of the rate's logarithm in a step."""
_MOST = 4.0
"""The factor lies between its inverse and this: nothing outside was tried."""
_SIGNAL = 0.005
"""The unit of a product, in parts of C²: the square of the share of a clipped gradient that usually
points where other people's point."""


class RateFollower:
    """Follows the hypergradient.

    Args:
        optimizer: one with a first moment, as Adam has.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, pace: float = _PACE) -> None:
        self._optimizer, self.factor, self._pace = optimizer, 1.0, pace

    def update(self, *, noise_std: float, l2_clip_norm: float) -> float:
        """The factor of the usual rate for the present step, whose gradients stand in ``.grad``.

        Args:
            noise_std: of the noise on each coordinate of a step's mean.
            l2_clip_norm: C.
        """
        pairs = [
            (p.grad, self._optimizer.state[p]["exp_avg"])
            for group in self._optimizer.param_groups
            for p in group["params"]
            if self._optimizer.state.get(p)
        ]
        if not pairs:
            return self.factor
        unit = 1 / (l2_clip_norm**2 * _SIGNAL)
        product = float(sum((grad * mean).sum() for grad, mean in pairs)) * unit
        # What the noise of this step adds to the product, as a standard deviation.
        deviation = noise_std * _norm([mean for _, mean in pairs]) * unit
        change = self._pace * math.tanh(product) / (1 + deviation**2) ** 2
        self.factor = min(_MOST, max(1 / _MOST, self.factor * math.exp(change)))
        return self.factor


def _norm(tensors: list[Tensor]) -> float:
    return float(torch.stack(torch._foreach_norm(tensors)).norm())
