r"""How much sums of one unit's positions may round, and how norms make room for it.

A unit adds :math:`G = \sum_s x_s` over its positions s. Let :math:`W = \sum_s \|x_s\|`, and u half
of float32's epsilon. Where positions nearly cancel, W is far longer than G, and so may the rounding
be. Two things hang on it.

**The unit's own gradient.** Each addition is off by at most u times its result. That is a sum over
some of the positions: no longer than their part of W, nor than G and the other part, so at most
:math:`(W + \|G\|) / 2`. Over P - 1 additions in any order, G is off by :math:`P u (W + \|G\|) /
2`; in runs of `RUN` positions by no more than for :math:`k = 2 \text{RUN} + P / \text{RUN}`
positions (within a run a result is at most as long as the run's part of W). Where a norm is taken
of one such sum and what is added is another one (`engines.norm_pass`), both may be off.
`taken_larger` adds that to the norm, less what the margin has room for.

**Everybody else's.** Units share passes, and a sum over a pass goes on behind a unit from other
numbers than without it: each later addition of the same run may round the other way. Those are as
wrong as the partial sums are long, which is up to half of the W of a unit whose positions cancel.
With W at 62 times the norm, one unit moved what 23 others add by 5.9e-4 C (322 positions in a run).
So a norm is taken to be at least 1/`CANCELLED` of the part of W in any `RUN` positions that follow
each other (`at_least`): what a unit adds in a run is no longer than `CANCELLED` C, whatever is left
of it, and products are made in runs.

Independent positions have W at 23 times the norm in a run of 512, those of ordinary text at 20.
"""

from __future__ import annotations

import torch
from torch import Tensor

RUN = 512
"""Positions of one product. A library may add them up one after another; MKL does so with 384.
Products of more are made of several, which takes no longer: within 1% on one core."""

CANCELLED = 32.0
"""Largest length of what a unit adds in one run, in units of its norm as it is taken. Then all of a
run's additions beside partial sums of 16 C are off by :math:`\\text{RUN} \\cdot u \\cdot 16 C` =
4.9e-4 C. Found on rows made to be worst: 3.1e-4 C (`tests/gradients/test_rounding.py`)."""

_SHARE = 3e-4
"""The part of the clip's margin that is for the rounding of a unit's own gradient."""

_LEAST = 1e-5
"""τ is at least that: a second backward pass has gradients of its own rounding at each layer."""


def additions(positions: int) -> int:
    """k: for how many additions the rounding of so many positions counts, made in runs.

    >>> additions(100), additions(512), additions(16384)
    (102, 514, 1058)
    """
    runs = 2 * RUN + positions // RUN
    return min(positions, runs) + 2


def taken_larger(squares: Tensor, lengths: Tensor, *, added: int) -> Tensor:
    r"""Squared norms, larger by what two sums of the same positions may differ by.

    .. math:: \big(\|G\| + \max(0, \tau (W + \|G\|) - 3 \cdot 10^{-4} \|G\|)\big)^2, \quad
        \tau = \max(10^{-5}, k u)

    Args:
        squares: float64, (units,); NaN and inf stay.
        lengths: W; float64, (units,).
        added: k, see `additions`; of sums that a library makes by itself, the positions.
    """
    norms = squares.sqrt()
    rounding = max(_LEAST, 1.01 * added * 2.0**-24)
    more = (rounding * (lengths + norms) - _SHARE * norms).clamp(min=0)
    return torch.where(more > 0, (norms + more).square(), squares)


def at_least(run: Tensor) -> Tensor:
    """The least squared norm of a unit with so long a run; see `longest_run`."""
    return (run / CANCELLED).square()


def longest_run(each_US: Tensor) -> Tensor:
    """The most that the lengths of any `RUN` positions in a row add up to, or more: (units,).

    Args:
        each_US: length of what each position adds, (units, positions).
    """
    units, positions = each_US.shape
    if positions <= RUN:
        return each_US.sum(1)
    missing = -positions % RUN
    blocks = torch.nn.functional.pad(each_US, (0, missing)).view(units, -1, RUN).sum(2)
    return (blocks[:, 1:] + blocks[:, :-1]).amax(1)  # a run lies in two blocks at most
