r"""How much sums may round: over one unit's positions, over the units of a pass, over passes.

**Positions that cancel.** A unit adds :math:`G = \sum_s x_s` over its positions s. Let
:math:`W = \sum_s \|x_s\|`. Units share passes, and a sum over a pass goes on behind a unit from
other numbers than without it: each later addition of the same run may round the other way. Those
are as wrong as the partial sums are long, which is up to half of the W of a unit whose positions
cancel. With W at 62 times the norm, one unit moved what 23 others add by 5.9e-4 C (322 positions in
a run). So where a product over positions is what is added (`rules.linear.Ghost`), a norm is taken
to be at least 1/`CANCELLED` of the part of W in any `RUN` positions that follow each other
(`at_least`): what a unit adds in a run is no longer than `CANCELLED` C, whatever is left of it, and
products are made in runs. Independent positions have W at 23 times the norm in a run of 512, those
of ordinary text at 20.

**Sums over passes: in float32 where that is covered, else in float64** (`running_dtype`). A float32
running sum takes half the memory while passes run. What it may cost is a tenth of the margin m at
which batches aim (`gradients.precision`), for all sums that one release adds up.

**Bound.** Pass p adds its units' weighted sum to the sum so far, and a parameter of two uses gets
two additions (`uses.squared_norms` leaves no more). An addition rounds each number once, to
nearest: by at most :math:`u = 2^{-24}` of the result. With :math:`N_p` units in the first p passes,
:math:`M_p` of them in pass p, each of norm at most :math:`C(1 - m)`, the result's norm after the
last addition of a pass is at most :math:`N_p C`; in between it is at most :math:`(N_p + M_p) C`,
since a unit whose two uses cancel further than to a quarter of their squares is computed alone. The
m left over in C covers what is of second order. So the sum differs from that of the same passes
without rounding by at most :math:`u C S` with :math:`S = \sum_p (2 N_p + M_p)`, which is
:math:`M (P + 2)` for M units in P equal passes. Float32 is taken while :math:`2 u S \le m / 10`,
which is :math:`S \le 838`, divided by the number of sums that are added up.

**The choice may depend on who was drawn.** Leave out one unit, and S, hence the type, may change.
But whichever type a sum has, it differs from the exact sum of its passes by at most :math:`m C /
20`, so by the triangle inequality two neighbours' sums differ by at most :math:`m C / 10` more than
the exact ones.

**Nothing else sees it.** What is not a pass's sum (a unit that was computed alone) is added in
float64, and what an engine returns is float64: exchange, noise and rounding are the same functions
of it. Were a float32 sum noised in place, its last bits would tell how many units were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from userdp.gradients.engines.task import Task
from userdp.gradients.precision import margin

RUN = 512
"""Positions of one product. A library may add them up one after another; MKL does so with 384.
Products of more are made of several, which takes no longer: within 1% on one core."""

CANCELLED = 32.0
"""Largest length of what a unit adds in one run, in units of its norm as it is taken. Then all of a
run's additions beside partial sums of 16 C are off by :math:`\\text{RUN} \\cdot u \\cdot 16 C` =
4.9e-4 C. Found on rows made to be worst: 3.1e-4 C (`tests/gradients/test_rounding.py`)."""

_SHARE = 0.1
"""Of the margin, which the rounding of running sums may use."""

_ROUNDING = 2.0**-24
"""Of one float32 addition, relative to its result."""


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


def running_dtype(task: Task, taken: Sequence[int]) -> torch.dtype:
    """Of the sum over passes of a task, by the number of units in each pass."""
    if task.parts is None or any(p.dtype != torch.float32 for p in task.parameters.values()):
        return torch.float64
    allowed = margin(task.dtypes) * _SHARE / task.parts
    covered = 2 * _ROUNDING * partial_sums(taken) <= allowed
    return torch.float32 if covered else torch.float64


def partial_sums(taken: Sequence[int]) -> int:
    """S, the most that the norms of a sum's partial results add up to, in units of C.

    >>> partial_sums([8, 8, 8, 8]) == 32 * (4 + 2)
    True
    """
    return sum(2 * so_far + units for so_far, units in zip(accumulate(taken), taken, strict=True))
