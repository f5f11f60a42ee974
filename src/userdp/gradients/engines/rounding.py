r"""How much rounding may cost: in norms from Gram matrices, over a unit's positions, over passes.

**Squared norms from Gram matrices: never too small, in any type of numbers** (`gram_norms`). A
unit's gradient :math:`G = \sum_s l_s r_s^T` over its positions s has
:math:`\|G\|^2 = \sum_{st} K_{st} H_{st}`, K and H the Gram matrices of its rows l (p wide) and r
(q wide). Rounding makes both wrong, and where positions cancel, error may be most of the sum. So
what was lost is bounded, from the matrices themselves, and added.

*Bound.* Let u be half the epsilon of the rows' type, which is float32 or wider. `gram` takes
products of some b columns, 128 or 512, and adds their n results up, both in whatever order a
library takes. So each term of a dot product is rounded at most c = b + n + 2 times, and with
:math:`\gamma = c u / (1 - c u)` (Higham 2002, Section 3.1)

.. math:: \hat K = K + E, \quad |E_{st}| \le \gamma_p \|l_s\| \|l_t\| + \nu_p,

likewise :math:`\hat H = H + F`. :math:`\nu_p = 2 p 2^{-126} + 2^{-126} p^{1/2} (\|l_s\| + \|l_t\|)`
is what vanishes below the normal numbers: results, and where a processor takes such numbers for
zero, those of the rows. Let :math:`\hat l_s = \hat K_{ss}^{1/2} + 2^{-46} p^{1/2}`, the lengths as
they were found, but not so short that such numbers count: :math:`\gamma_p \ge 3 \times 2^{-24}`, so
that :math:`\gamma_p \hat l_s \hat l_t` is more than 1,000 times :math:`\nu_p`. Then, with
:math:`\gamma'_p = \gamma_p / (1 - \gamma_p)`, :math:`|E_{st}| \le 1.01\, \gamma'_p \hat l_s \hat
l_t`. As :math:`K H = (\hat K - E)(\hat H - F)` in each entry,

.. math:: \|G\|^2 \le \sum_{st} \hat K_{st} \hat H_{st} + 1.02 \Big( \gamma'_p \sum_{st} \hat l_s
    \hat l_t |\hat H_{st}| + \gamma'_q \sum_{st} \hat r_s \hat r_t |\hat K_{st}|
    + \gamma'_p \gamma'_q \Big( \sum_s \hat l_s \hat r_s \Big)^2 \Big).

The sums over (S, S) numbers are float64; each rounds by less than :math:`S^2 2^{-52}` of what it
adds up, which `gram_error` counts too.

The bound takes S² operations where the matrices take S² (p + q). How loose it is hangs on the rows:
where positions are unlike each other, what is off a matrix's diagonal is small. On text a norm
grows by 3e-5 to 7e-4 of itself (docs/engines.md has the figures); it may grow by a tenth at
the largest condition that is accepted (`rules.linear.GHOST_CONDITION`), where most of it cancels.

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

*Bound.* Pass p adds its units' weighted sum to the sum so far, and a parameter of two uses gets
two additions (`uses.squared_norms` leaves no more). An addition rounds each number once, to
nearest: by at most :math:`u = 2^{-24}` of the result. With :math:`N_p` units in the first p passes,
:math:`M_p` of them in pass p, each of norm at most :math:`C(1 - m)`, the result's norm after the
last addition of a pass is at most :math:`N_p C`; in between it is at most :math:`(N_p + M_p) C`,
since a unit whose two uses cancel further than to a quarter of their squares is computed alone. The
m left over in C covers what is of second order. So the sum differs from that of the same passes
without rounding by at most :math:`u C S` with :math:`S = \sum_p (2 N_p + M_p)`, which is
:math:`M (P + 2)` for M units in P equal passes. Float32 is taken while :math:`2 u S \le m / 10`,
which is :math:`S \le 838`, divided by the number of sums that are added up.

*The choice may depend on who was drawn.* Leave out one unit, and S, hence the type, may change.
But whichever type a sum has, it differs from the exact sum of its passes by at most :math:`m C /
20`, so by the triangle inequality two neighbours' sums differ by at most :math:`m C / 10` more than
the exact ones.

*Nothing else sees it.* What is not a pass's sum (a unit that was computed alone) is added in
float64, and what an engine returns is float64: exchange, noise and rounding are the same functions
of it. Were a float32 sum noised in place, its last bits would tell how many units were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.uses import wide
from userdp.gradients.precision import margin

_COLUMNS = 128
"""Columns of one product. Fewer round less, and cost more additions: beside 128, Gram matrices of
4,096 columns take 0.8 times as long in 512 (one core)."""

_DEVICE_COLUMNS = 512
"""The same on an accelerator, where the host has to ask for each product."""

_VANISHING = 2.0**-46
"""What each number of a row is taken to be at least, in the bound."""

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


class GramNorms(NamedTuple):
    r"""What Gram matrices tell of some units; each float64, (units,).

    Attributes:
        found: the squared norms, which may be too small or too large.
        most: never less than the squared norms; NaN or inf where they are not finite.
        lengths: W, the length of all that is added up: :math:`\sum_s \|l_s\| \|r_s\|`.
        run: the longest part of W in positions that follow each other (`longest_run`).
        longest: the sum of the lengths of the rows, of the side where it is larger.
    """

    found: Tensor
    most: Tensor
    lengths: Tensor
    run: Tensor
    longest: Tensor


def gram_norms(left_USP: Tensor, right_USQ: Tensor) -> GramNorms:
    """Of each unit's ``left.T @ right``: (units, positions, p) and (units, positions, q)."""
    grams, lengths, least, errors = [], [], [], []
    for side in (wide(left_USP), wide(right_USQ)):
        positions, width = side.shape[1:]
        grams.append(gram(side))
        lengths.append(grams[-1].diagonal(dim1=1, dim2=2).clamp(min=0).sqrt())
        least.append(lengths[-1] + _VANISHING * width**0.5)
        errors.append(gram_error(width, positions, side.dtype, side.device.type))
    found = (grams[0] * grams[1]).sum(2).sum(1)
    lost = errors[0] * errors[1] * (least[0] * least[1]).sum(1).square()
    for error, own, other in zip(errors, least, grams[::-1], strict=True):
        lost += error * (torch.bmm(other.abs_(), own[:, :, None])[:, :, 0] * own).sum(1)
    each = lengths[0] * lengths[1]
    return GramNorms(
        found=found,
        most=found.clamp(min=0) + lost,
        lengths=each.sum(1),
        run=longest_run(each),
        longest=torch.maximum(lengths[0].sum(1), lengths[1].sum(1)),
    )


def gram(rows_USP: Tensor) -> Tensor:
    """Each unit's products of rows with rows: (units, positions, positions).

    In float64, of numbers that were added up in the type of the rows.
    """
    units, positions, _ = rows_USP.shape
    total = rows_USP.new_zeros(units, positions, positions)
    for columns in torch.split(rows_USP, _columns(rows_USP.device.type), dim=2):
        total.baddbmm_(columns, columns.transpose(1, 2))
    return total.double()


def gram_error(width: int, positions: int, dtype: torch.dtype, device: str = "cpu") -> float:
    """How wrong an entry may be, relative to the product of its rows' lengths: 1.02 γ'.

    Args:
        width: of the side.
        positions: of a unit; what float64 sums over pairs of them lose is included.
        dtype: of the side; float32 or float64.
        device: the type of the device that computes.

    >>> round(gram_error(4096, 128, torch.float32) * 1e6)
    10
    """
    columns = _columns(device)
    rounded = (min(width, columns) + width // columns + 2) * torch.finfo(dtype).eps / 2
    return 1.02 * (rounded / (1 - 2 * rounded) + positions**2 * 2.0**-52)


def _columns(device: str) -> int:
    return _COLUMNS if device == "cpu" else _DEVICE_COLUMNS


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
    blocks = F.pad(each_US, (0, -positions % RUN)).view(units, -1, RUN).sum(2)
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
