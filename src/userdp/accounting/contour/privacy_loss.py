r"""What is priced, and the privacy loss of one of its steps, on and above the real axis.

A step's output is compared in noise standard deviations: P = N(0, 1) without the user, and
Q = sum_k p_k N(a_k, 1) with the user, where a_k is the shift of k drawn items.

Legend (docs/accounting.md, Section 1): x is a step's output, w_k = log p_k,
l(z) = log sum_k exp(w_k + a_k z - a_k^2/2) = log Q/P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.item_count_laws import Binomial, Law

Floats = NDArray[np.float64]

_LEAST_LOG = 5000.0  # components of probability below e^-5000 are not kept


@dataclass(frozen=True, slots=True)
class ShiftLaw:
    """Q as a mixture: a_k ascending, w_k = log p_k, ``missing`` = 1 - sum p_k (dropped mass)."""

    a: Floats
    w: Floats
    missing: float = 0.0


@dataclass(frozen=True, slots=True)
class Pair:
    """The pair (P, Q) that dominates one step, composed with itself ``steps`` times.

    Guarantee: none by itself; it only says what is priced. Nothing is checked here:
    `userdp.accounting.mechanisms` takes the constants of what ran, and checks them.
    """

    law: ShiftLaw
    steps: int

    @property
    def gaussian_mu(self) -> float | None:
        """mu of the single Gaussian mechanism that this is, if the shift is certain."""
        return self.dominating_mu if self.law.a.size == 1 else None

    @property
    def dominating_mu(self) -> float:
        """mu of a Gaussian that is easier to tell apart: every step has its largest shift.

        Q^T is a mixture, over the sequences of shifts, of Gaussians of norm at most mu; the
        hockey-stick divergence is jointly convex and grows with mu (docs, eq. 21).
        """
        return math.sqrt(self.steps * float(self.law.a[-1]) ** 2)

    @property
    def participation(self) -> float:
        """An upper bound of the chance of any participation, hence of every delta (docs, eq. 20).

        1 - p_0 is not formed by a subtraction where it is small.
        """
        a, w = self.law.a, self.law.w
        if a[0] > 0:
            return 1.0
        hit = math.fsum(np.exp(w[1:])) if w[0] > -0.1 else -math.expm1(w[0])
        return min(self.steps * hit * (1 + 1e-12), 1.0)

    @property
    def largest_add_loss(self) -> float:
        """The supremum of add's loss, -T log p_0; infinite where no shift is 0."""
        law = self.law
        return math.inf if law.a[0] > 0 else -self.steps * float(law.w[0]) * (1 + 1e-12)


def pair_of(law: Law, *, scale: float = 1.0, noise_multiplier: float, steps: int) -> Pair:
    """The pair of ``steps`` steps whose shift is ``scale`` * k, where k is drawn from ``law``.

    Args:
        law: binomial where each of a user's items joins by a coin of its own (Charles et al. 2024,
            Theorem 1; of one item, Theorem 2); with probability 1 the plain Gaussian mechanism.
            Hypergeometric for a fixed batch without replacement, with a ``scale`` of 2, since a
            sampled item also displaces another one (Ganesh 2024, Theorem 3.3).
        scale: in clip norms.
        noise_multiplier: sigma > 0, in clip norms.
        steps: T >= 1.
    """
    w = np.zeros(1) if law.is_certain else _log_probabilities(law)
    k = np.arange(law.most + 1 - w.size, law.most + 1, dtype=np.float64)
    keep = w > -_LEAST_LOG  # the rest, < 1e7 e^-5000 in all, is accounted for by `Side`
    k, w = k[keep], w[keep]
    w = w - math.log(math.fsum(np.exp(w)))
    return Pair(ShiftLaw(k * scale / noise_multiplier, w), steps)


def _log_probabilities(law: Law) -> Floats:
    """log p_0, log p_1, …, less that of the likeliest k, from log(p_{k+1}/p_k), which falls.

    The logarithms are added up from the mode, so that rounding is near 1e-16 where most of the
    mass is.
    """
    k = np.arange(law.most, dtype=np.float64)
    if isinstance(law, Binomial):
        p = law.probability
        log_ratios = np.log((law.trials - k) / (k + 1)) + (math.log(p) - math.log1p(-p))
    else:
        spare = law.population - law.marked - law.draws
        log_ratios = np.log((law.marked - k) * (law.draws - k) / ((k + 1) * (spare + k + 1)))
    mode = int(np.searchsorted(-log_ratios, 0.0))  # ratios fall: first one below 0 follows the mode
    up = _cumulated(log_ratios[mode:])
    down = -_cumulated(log_ratios[:mode][::-1])[::-1]
    return np.concatenate([down, [0.0], up])


def _cumulated(terms: Floats) -> Floats:
    """Running sums whose own rounding is added back (each step's is exactly known: TwoSum)."""
    sums = np.cumsum(terms)
    before = np.concatenate([[0.0], sums[:-1]])
    taken = sums - before
    lost = (before - (sums - taken)) + (terms - taken)
    out: Floats = sums + np.cumsum(lost)
    return out


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


_TURN = 2 * np.pi
_DROP = 46.0  # terms below e^-46 < 2^-66 of the sum; rounding level even for thousands of them
_CHUNK = 256  # points at a time: their relevant components are few, and tables stay in cache


def on_branch(value: Complexes, y: Floats, slope: Floats) -> Complexes:
    """``value`` moved by the multiple of 2 pi i that puts Im l next to y l' (docs, eq. 9a).

    Any logarithm of e^l differs from l by a multiple of 2 pi i. Where y^2 l'' < 2,
    |Im l - y l'| < pi/2 < pi, so exactly one multiple fits and rounding finds it. A double holds
    y l' to much better than pi/2 as long as it stays below 1e15.

    Args:
        value: some logarithm of e^{l(x + iy)}, (m, n).
        y: (m,), >= 0.
        slope: l'(x), (n,).
    """
    turns = np.outer(y, slope)
    turns -= value.imag
    turns /= _TURN
    np.rint(turns, out=turns)
    out: Complexes = value + 1j * _TURN * turns if turns.any() else value
    return out


def is_on_branch(ell: Complexes, y: Floats, slope: Floats) -> bool:
    """Whether |Im l - y l'| < pi/2 for all: true of l, false of l + 2 pi i k, k != 0 (eq. 9a).

    Legitimate only where y^2 l'' < 2.
    """
    off = np.outer(y, slope)
    off -= ell.imag
    # a maximum that is not a number fails too
    return bool(np.abs(off, out=off).max() < 0.5 * np.pi * (1 + 1e-9))


def _relevant(law: ShiftLaw, x: Floats) -> slice:
    """Components that may be above e^-46 of the largest one anywhere in the range of ``x``.

    log p_k is concave in k for the laws that there are, and so is the exponent of each term. So
    the components that matter at one x are neighbours, and both ends of their range rise with x.
    """

    def felt(at: float) -> NDArray[np.intp]:
        e = law.w + law.a * (at - 0.5 * law.a)
        return np.flatnonzero(e > e.max() - _DROP)

    return slice(int(felt(float(x[0]))[0]), int(felt(float(x[-1]))[-1]) + 1)


def turns_upwards(law: ShiftLaw, x: float, height: float) -> bool:
    """Whether Im l(x + iy) >= 0 is certain for all 0 <= y <= ``height`` (docs, eq. 11b)."""
    e = law.w + law.a * (x - 0.5 * law.a)
    q = np.exp(e - e.max())
    q /= q.sum()
    mean = float(q @ law.a)
    bend = float(q @ (law.a - mean) ** 2)
    room = 1 - 0.5 * height * height * bend
    if room > 0 and mean * room >= height * bend:
        return True
    turn = (law.a - law.a[0]) * height / np.pi
    good = turn <= 1
    return float((q * turn * (1 - turn))[good].sum()) >= float((q * turn)[~good].sum())


def losses(
    law: ShiftLaw, x: Floats, y: Floats, reach: float = 0.0
) -> tuple[Complexes, Floats, Floats]:
    """(l(x + iy), l'(x), a bound of l'' on [x - reach, x + reach]).

    Guarantee: on the branch that is continuous from the real axis wherever
    y^2 l''(x) < 2 (docs, eq. 9); l near 0 keeps its relative accuracy (log1p of
    sum p_k (e^t - 1)).

    Args:
        law: the mixture.
        x: (n,), ascending.
        y: (m,), each >= 0.
        reach: >= 0; 0 for l''(x) itself.

    Returns:
        complex (m, n); l' and (a bound of) l'' on the real axis, (n,). l' and l'' are the posterior
        mean and variance of a_k. The bound is sum pi_k (a_k - l')^2 e^{reach |a_k - l'|} (docs,
        eq. 9b).
    """
    ell = np.empty((y.size, x.size), dtype=np.complex128)
    first, second = np.empty_like(x), np.empty_like(x)
    for start in range(0, x.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        xc = x[part]
        use = _relevant(law, xc) if law.a.size > 4 else slice(0, law.a.size)
        a, w = law.a[use], law.w[use]
        outside = float(np.exp(law.w[: use.start]).sum() + np.exp(law.w[use.stop :]).sum())
        t = a[None, :] * (xc[:, None] - 0.5 * a[None, :])
        e = t + w[None, :]
        top = e.max(axis=1)
        q = np.exp(e - top[:, None])
        total = q.sum(axis=1)
        mean = (q @ a) / total
        first[part] = mean
        away = a[None, :] - mean[:, None]
        spread = q * away * away
        if reach > 0:
            spread *= np.exp(np.minimum(reach * np.abs(away), 600.0))
        second[part] = spread.sum(axis=1) / total
        turn = np.exp(1j * np.outer(a, y))  # (K, m)
        big = np.log(q @ turn).T + top[None, :]
        # near l = 0 log(1 + d) with d = sum p_k (e^t - 1) keeps the digits that log(sum) loses;
        # 0.3 on the axis, and |d| < 1/2 on the line, since log1p serves no other place
        small = np.abs(top + np.log(total)) < 0.3
        if small.any():
            ts = t[small]
            large = ts > 30.0  # there p_k e^t overflows apart, and -1 is below its rounding
            growth = np.where(large, np.exp(np.where(large, e[small], 0.0)), 0.0) + np.where(
                large, 0.0, np.exp(w)[None, :] * np.expm1(np.where(large, 0.0, ts))
            )
            lone = np.where(large, 0.0, np.exp(w)[None, :])  # e^{w + t} is already all of it
            half = np.outer(a, y)
            minus_one = -2 * np.sin(half / 2) ** 2 + 1j * np.sin(half)
            d = growth @ turn + lone @ minus_one
            d -= (law.missing + outside) + np.where(large, np.exp(w)[None, :], 0.0).sum(axis=1)[
                :, None
            ]
            near = np.abs(d.T) < 0.5
            big[:, small] = np.where(near, log1p(d).T, big[:, small])
        # only now, so that no way of taking the logarithm escapes it
        ell[:, part] = on_branch(big, y, mean)
    return ell, first, second
