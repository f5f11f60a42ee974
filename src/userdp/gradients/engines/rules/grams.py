r"""Squared norms of per-unit gradients from Gram matrices: never too small, in any type of numbers.

A unit's gradient :math:`G = \sum_s l_s r_s^T` over its positions s has
:math:`\|G\|^2 = \sum_{st} K_{st} H_{st}`, K and H the Gram matrices of its rows l (p wide) and r
(q wide). Rounding makes both wrong, and where positions cancel, error may be most of the sum. So
what was lost is bounded, from the matrices themselves, and added.

**Bound.** Let u be half the epsilon of the rows' type, which is float32 or wider. `gram` takes
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
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from userdp.gradients.engines.rounding import longest_run
from userdp.gradients.engines.uses import wide

_COLUMNS = 128
"""Columns of one product. Fewer round less, and cost more additions: beside 128, Gram matrices of
4,096 columns take 0.8 times as long in 512 (one core)."""

_DEVICE_COLUMNS = 512
"""The same on an accelerator, where the host has to ask for each product."""

_VANISHING = 2.0**-46
"""What each number of a row is taken to be at least, in the bound."""


class GramNorms(NamedTuple):
    r"""What Gram matrices tell of some units; each float64, (units,).

    Attributes:
        found: the squared norms, which may be too small or too large.
        most: never less than the squared norms; NaN or inf where they are not finite.
        lengths: W, the length of all that is added up: :math:`\sum_s \|l_s\| \|r_s\|`.
        run: the longest part of W in positions that follow each other (`engines.rounding`).
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
