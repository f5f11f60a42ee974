r"""log(1 + z) and sums of e^{i t} - 1 that keep their relative accuracy near 0."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Complexes = NDArray[np.complex128]


def log1p(z: Complexes) -> Complexes:
    """log(1 + z) on the principal branch; the error is a few ulps of |z| for small z.

    NumPy's complex log1p takes log|1 + z| and loses everything below 1e-16.
    """
    x, y = z.real, z.imag
    size = np.hypot(1 + x, y)
    far = size < 0.5
    near_size = np.where(far, 0.0, x * (2 + x) + y * y)
    real = np.where(far, np.log(np.maximum(size, 1e-300)), 0.5 * np.log1p(near_size))
    out: Complexes = real + 1j * np.arctan2(y, 1 + x)
    return out


def departures(weights: Complexes, ell: Complexes, h: float, n: int) -> Complexes:
    """sum_m w_m (e^{i j h l_m} - 1) for j < n, by two short tables and one matrix product.

    With j = J r + q: e^{(A+B)} - 1 = e^A (e^B - 1) + (e^A - 1), so nothing is subtracted from 1.
    """
    inner = max(1, math.isqrt(n))
    outer = -(-n // inner)
    fine = np.expm1(1j * np.outer(ell, h * np.arange(inner)))
    coarse = np.expm1(1j * np.outer(h * inner * np.arange(outer), ell))
    lone = coarse @ weights
    out: Complexes = (((coarse + 1) * weights[None, :]) @ fine + lone[:, None]).reshape(-1)[:n]
    return out


def sums(weights: Complexes, ell: Complexes, h: float, n: int) -> Complexes:
    """sum_m w_m e^{i j h l_m} for j < n."""
    inner = max(1, math.isqrt(n))
    outer = -(-n // inner)
    fine = np.exp(1j * np.outer(ell, h * np.arange(inner)))
    coarse = np.exp(1j * np.outer(h * inner * np.arange(outer), ell))
    out: Complexes = ((coarse * weights[None, :]) @ fine).reshape(-1)[:n]
    return out
