r"""A learning rate that follows the noisy gradients; free in ε.

With :math:`m_{t-1}` the optimizer's mean of earlier noisy gradients, along which the weights have
moved, :math:`\langle \tilde g_t, m_{t-1} \rangle` tells, up to a positive factor, how much less the
loss would be now if the last steps had been a little longer: the hypergradient of Baydin et al.
2018, "Online Learning Rate Adaptation with Hypergradient Descent", equation 5. It is positive while
the gradients of new cohorts agree with the way that the weights have gone. It is negative where
steps overshoot, or the noise in them has done more harm than their signal has done good. The noise
of step t itself adds nothing on average, and how much it adds by chance is known.

The logarithm of the rate moves a little in each step: by at most `_PACE`, and by less where noise
hides the product. Measured in ``docs/results/recipe.md``.

Guarantee: post-processing of noisy gradients and public constants.
"""

from __future__ import annotations

import math

import torch

from userdp.gradients.shards import whole
from userdp.training.step_mechanism import Step

_PACE = 0.1
"""The most that the logarithm of the rate moves in a step."""
_MOST = 4.0
"""The factor lies between its inverse and this: nothing outside was tried."""
_SIGNAL = 0.005
"""The unit of a product, in parts of C²: the square of the share of a clipped gradient that usually
points where other people's point."""


class RateFollower:
    """The factor by which the rate follows, kept in the optimizer's groups, as checkpoints are.

    Args:
        optimizer: one that keeps ``exp_avg``, the mean of its gradients.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups, self._state = optimizer.param_groups, optimizer.state

    def factor(self, step: Step) -> float:
        """The factor for the present step, whose gradients stand in ``.grad``."""
        pairs = [
            (parameter.grad, self._state[parameter]["exp_avg"])
            for group in self._groups
            for parameter in group["params"]
            if parameter.grad is not None and self._state.get(parameter)
        ]
        factor = float(self._groups[0].get("factor", 1.0))
        if pairs:
            unit = _SIGNAL * step.l2_norm**2
            product = sum(float(whole((grad * mean).sum())) for grad, mean in pairs) / unit
            length = math.sqrt(sum(float(whole(mean.square().sum())) for _, mean in pairs))
            by_chance = step.noise_std * length / unit  # of the product, a standard deviation
            change = _PACE * math.tanh(product) / (1 + by_chance**2) ** 2
            factor = min(_MOST, max(1 / _MOST, factor * math.exp(change)))
        for group in self._groups:
            group["factor"] = factor
        return factor
