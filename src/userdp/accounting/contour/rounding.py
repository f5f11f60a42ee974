r"""The stated allowance for float rounding in one step's M(c + iu) / M(c) (docs, Section 6)."""

from __future__ import annotations

import numpy as np

from userdp.accounting.contour.losses import Complexes, Floats

EPS = 2.0**-53


def rounding(weights: Complexes, ell: Complexes, c: float, u: Floats) -> Floats:
    """Allowance for |error| of sum_m w_m (e^{iu l_m} - 1), elementwise in ``u``.

    32 ulps of sum |w| min(2, u |l|) (weights, tables, products, the sum), and 8 ulps of
    (1 + c + u) |l| for the loss itself.
    """
    size, loss = np.abs(weights), np.abs(ell)
    mean = float(size @ loss)
    reach: Floats = np.minimum(2.0 * float(size.sum()), u * mean)
    return EPS * (32.0 * reach + 8.0 * (1.0 + c + u) * mean)


def widened(log_size: Floats, growth: Floats) -> Floats:
    """e^log_size (e^growth - 1): the error of a product of many factors, without loss.

    Infinite where no double holds it: a number that was cut off would be no bound.

    A factor m with error e and power T contributes T log(1 + e/|m|) to ``growth`` (docs, eq. 14).
    """
    with np.errstate(over="ignore"):  # infinity is the right bound: a cut-off number would be none
        out: Floats = np.exp(log_size + growth) * -np.expm1(-growth)
    return out
