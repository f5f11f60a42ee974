r"""A learning rate that follows the signal which people's gradients share; free in ε.

Of the noisy mean gradients :math:`\tilde g_1, \dots, \tilde g_k` of the first steps,

.. math::
    \hat s^2 = \frac{\|\sum_t \tilde g_t\|^2 - \sum_t \|\tilde g_t\|^2}{k (k - 1) C^2}

is the mean product of two different steps' gradients in parts of the clip norm C. Noise and cohorts
of different steps are independent, so that only the part which all steps share is left of it: the
share s of a clipped gradient that points where the others point. The larger it is, the more a
step teaches for the noise that it adds, and the larger a rate pays (docs/results/recipe.md).

Guarantee: post-processing of noisy gradients and public constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

USUAL = 0.085
"""s of the texts on which the preset's rate was found, of one example a user: its geometric mean
over texts that have little and much to teach."""
_EXPONENT = 1.35
_MOST = 2.0
"""The factor lies between its inverse and this: nothing outside was tried."""


class SharedSignal:
    """Measures s over the first steps.

    Args:
        parameters: whose ``.grad`` holds the noisy mean after each step.
        l2_clip_norm: C.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], l2_clip_norm: float) -> None:
        self._parameters, self._unit = parameters, 1 / l2_clip_norm
        self.sums = [torch.zeros_like(p) for p in parameters]
        self.squares, self.steps = 0.0, 0

    def add(self) -> None:
        """Take in the present step's gradients."""
        grads = [p.grad for p in self._parameters if p.grad is not None]
        torch._foreach_add_(self.sums, grads)
        self.squares += _square(grads)
        self.steps += 1

    @property
    def square(self) -> float:
        """The unbiased estimate of s²."""
        pairs = self.steps * (self.steps - 1)
        return (_square(self.sums) - self.squares) / pairs * self._unit**2

    def factor(self, noise_std: float) -> float:
        """Of the usual learning rate.

        Args:
            noise_std: of the noise on each coordinate of a step's mean.
        """
        pairs = self.steps * (self.steps - 1)
        # The deviation of the estimate by noise, against a prior that s² is the usual one, give or take
        # as much: where noise hides s the usual rate stays.
        count = sum(p.numel() for p in self._parameters)
        deviation = (noise_std * self._unit) ** 2 * math.sqrt(2 * count / pairs)
        trust = USUAL**4 / (USUAL**4 + deviation**2)
        square = trust * max(self.square, 0.0) + (1 - trust) * USUAL**2
        return min(_MOST, max(1 / _MOST, (square / USUAL**2) ** (_EXPONENT / 2)))


def _square(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack(torch._foreach_norm(tensors)).square().sum())
