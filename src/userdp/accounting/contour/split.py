r"""Where to split the steps into large and small ones, and what the split leaves out.

Q = Q_0 + Q_1 by the smooth weight chi(x) = erfc(-kappa (x - x_s))/2, with Q_1 = chi Q the large
steps (docs, Section 5). Everything here is on the coarse real grid: upper sums that bound, and
choices that may be poor but never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr

from userdp.accounting.contour.chernoff import (
    Chernoff,
    Weight,
    log_kappa,
    log_upper_share,
    log_upper_sum,
    numerator_mass,
    rounded_up,
)
from userdp.accounting.contour.losses import Floats
from userdp.accounting.contour.side import GridTooLarge, Side, Step, on_finer_grid, strip_height

TURN = 3.2  # kappa Y: |chi| grows by at most about e^{(kappa Y)^2} on the strip
_LEAST_RATE, _MOST_RATE = 2.5, 12.0
# kappa h_1: a sum with the weight chi misses at most about 2 e^{(kappa Y)^2 - 2 pi Y/h_1} of
# itself, which is below 1e-7 at kappa Y = TURN.
_TURN_A_POINT = 0.7
_BACK = 5.0  # chi is 1 - 1e-12 where the loss is as large as asked: erfc(5)/2 (docs, Section 5.1)
_LEAST_EPSILON = 1e-9  # orders are in units of 1/epsilon
_MOST_HITS = 30.0  # beyond, the plateau is too low to matter and the split only costs
# The loss that makes a step a large one, in parts of epsilon. A larger share leaves more out
# (H_0), a smaller one gives more large steps, so the first share that leaves little out is best.
_SHARES_OF_EPSILON = (0.8, 0.45, 0.3, 0.2, 0.12, 0.07, 0.04, 0.02)
_ORDERS = np.geomspace(0.05, 400.0, 120)  # of M_0, in units of 1/epsilon
_DEEP = 43.0  # the small part of a line ends where its integrand has fallen by e^-43
# Mass that may be left out, in parts of delta. Two such parts (this and the dropped components)
# stay far below the width of 1e-6 that a bracket aims at.
LEFT_OUT = 2e-8


@dataclass(frozen=True, slots=True)
class Split:
    """One step's weight chi: ``place`` x_s, ``rate`` kappa; its logs on the grid in ``domain``."""

    place: float
    rate: float
    domain: slice
    log_chi: Floats
    log_not_chi: Floats

    @property
    def chi(self) -> Weight:
        """Of the large part."""
        return Weight(self.log_chi, self.rate)

    def not_chi(self, stop: int | None = None) -> Weight:
        """Of the small part, on the first ``stop`` points."""
        return Weight(self.log_not_chi[:stop], self.rate)


Splits = tuple[Split, ...]


def split_at(step: Step, place: float, rate: float, stop: int) -> Split:
    """The weight with these parameters on the first ``stop`` points of the step's grid.

    erfc(-t)/2 = Phi(t sqrt 2), whose logarithm does not underflow.
    """
    t = math.sqrt(2) * rate * (step.x[:stop] - place)
    return Split(place, rate, slice(0, stop), log_ndtr(t), log_ndtr(-t))


def lengthened(side: Side, splits: Splits, more: float) -> Splits:
    """The same weights on x up to ``more`` beyond where the mass ends."""
    return tuple(
        split_at(step, split.place, split.rate, _stop(step, more))
        for step, split in zip(side.steps, splits, strict=True)
    )


def shortened(side: Side, splits: Splits, b: float) -> tuple[Splits, float] | None:
    """(the weights where the small part lives, its mass beyond); None where it grows again."""
    parts, leak = [], 0.0
    for step, split in zip(side.steps, splits, strict=True):
        x = step.x[split.domain]
        g = b * step.ell[split.domain] - 0.5 * x * x + split.log_not_chi
        main = int(np.searchsorted(x, split.place + 3.0 / split.rate))
        fallen = np.flatnonzero(g[main:] < float(g[: max(main, 1)].max()) - _DEEP)
        if not fallen.size:
            return None
        stop = main + int(fallen[0]) + 1
        leak += step.count * _small_mass(step, split, stop)
        parts.append(split_at(step, split.place, split.rate, stop))
    return tuple(parts), leak


def _stop(step: Step, more: float) -> int:
    return int(min(step.inner.stop + int(more / step.h) + 1, step.x.size))


def _small_mass(step: Step, split: Split, stop: int) -> float:
    """An upper sum of (1 - chi) Q on the domain beyond its first ``stop`` points, one step."""
    beyond = slice(stop - 1, split.domain.stop)
    return numerator_mass(step, beyond, remove=True, log_weight=split.log_not_chi[stop - 1 :])


def log_small(side: Side, splits: Splits, a: Floats) -> Floats:
    """log of an upper bound of prod M_0(a)^T at the orders ``a``."""
    k = 0.5 * side.mu2 * a * (a + 1)
    for step, split in zip(side.steps, splits, strict=True):
        k = k + step.count * log_upper_sum(step, split.domain, 1 + a, split.not_chi())
    return rounded_up(k)


def log_large(side: Side, splits: Splits, a: Floats) -> Floats:
    """log of an upper bound of M(a)^T - M_0(a)^T <= (sum T M_1/M) M^T, at the orders ``a``."""
    k = 0.5 * side.mu2 * a * (a + 1)
    share = np.full(a.size, -np.inf)
    for step, split in zip(side.steps, splits, strict=True):
        k = k + step.count * log_upper_sum(step, split.domain, 1 + a)
        large = log_upper_share(step, split.domain, 1 + a, split.chi)
        share = np.logaddexp(share, math.log(step.count) + large)
    out: Floats = rounded_up(k) + np.minimum(share, 0.0)
    return out


@dataclass(frozen=True, slots=True)
class Choice:
    """Splits, and a bound of what they leave out: Chernoff's, or None (it needs its own sum).

    ``side`` is the one that was asked for, on grids fine enough for these weights.
    """

    side: Side
    splits: Splits
    rest: Chernoff | None
    leak: float


def choices(side: Side, epsilon: float, log_delta: float) -> Iterator[Choice]:
    """Where to split, best first: one with a Chernoff rest if there is one, else several."""
    if not side.remove or not side.steps or not epsilon > _LEAST_EPSILON:
        return
    without_rest = []
    for share in _SHARES_OF_EPSILON:
        try:
            fine, splits = _splits(side, share * epsilon)
        except GridTooLarge:
            continue
        if _hits(fine, splits) > _MOST_HITS:
            break
        rest, leak = _rest(fine, splits, share * epsilon, epsilon)
        if math.exp(rest.log_delta(epsilon)) + leak <= LEFT_OUT * math.exp(log_delta):
            yield Choice(fine, splits, rest, leak)
            return
        without_rest.append(Choice(fine, splits, None, 0.0))
    yield from without_rest


def _splits(side: Side, loss_at_most: float) -> tuple[Side, Splits]:
    """x_s five widths 1/kappa to the left of where one step alone loses ``loss_at_most``.

    With them the same side, on grids on which sums with these weights are upper sums.
    """
    steps, splits = [], []
    for step in side.steps:
        stop = _stop(step, 1.5)
        hit = min(int(np.searchsorted(step.ell[:stop], loss_at_most)), stop - 1)
        # chi should turn on a scale on which the loss grows by a part of itself
        steep = float(step.slope[hit] / max(step.ell[hit], 1e-300))
        rate = min(max(4.0 * steep, _LEAST_RATE), _MOST_RATE)
        rate = TURN / min(TURN / rate, strip_height(step, slice(0, stop)))
        fine = on_finer_grid(step, _TURN_A_POINT / rate)
        steps.append(fine)
        splits.append(split_at(fine, float(step.x[hit]) - _BACK / rate, rate, _stop(fine, 1.5)))
    return replace(side, steps=tuple(steps)), tuple(splits)


def _hits(side: Side, splits: Splits) -> float:
    """Expected number of large steps."""
    one = np.ones(1)
    return sum(
        step.count * math.exp(min(float(log_upper_sum(step, split.domain, one, split.chi)[0]), 0.0))
        for step, split in zip(side.steps, splits, strict=True)
    )


def _rest(
    side: Side, splits: Splits, loss_at_most: float, epsilon: float
) -> tuple[Chernoff, float]:
    """Bounds of H_0: (all steps lose at most ``loss_at_most``, some step loses more yet is small).

    The second is the numerator mass of such paths (docs, eq. 19).
    """
    a = _ORDERS / epsilon
    k = 0.5 * side.mu2 * a * (a + 1)
    leak = 0.0
    for step, split in zip(side.steps, splits, strict=True):
        ell = step.ell[split.domain]
        stop = min(int(np.searchsorted(ell, loss_at_most)) + 1, ell.size)
        k = k + step.count * log_upper_sum(step, slice(0, stop), 1 + a, split.not_chi(stop))
        leak += step.count * _small_mass(step, split, stop)
    return Chernoff(a, rounded_up(k) + log_kappa(a)), leak
