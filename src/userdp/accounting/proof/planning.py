"""Where the proof looks: line, step and range, chosen in floats.

Nothing here needs to be right. A poor choice makes an enclosure wide or stops it; the proof itself
(`moment`, `line_sum`) trusts no float of this file beyond taking it as the dyadic number that it
is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtri_exp
from scipy.stats import binom, hypergeom

from userdp.accounting.certified_search import bisect
from userdp.accounting.item_count_laws import Binomial
from userdp.accounting.proof.step_law import Steps

Floats = NDArray[np.float64]

_NEGLIGIBLE = 110.0  # log of what a window of k may leave out, beside the largest term
_LINES = np.geomspace(1e-8, 1e8, 481)  # candidates for c and for the orders of Chernoff's bound


class FloatLaw:
    """log q_k, ℓ and the posterior moments of one step in floats."""

    def __init__(self, steps: Steps) -> None:
        law = steps.law
        self.a = steps.scale / steps.noise_multiplier
        self.k = np.arange(law.most + 1, dtype=np.float64)
        if isinstance(law, Binomial):
            log_q = binom.logpmf(self.k, law.trials, law.probability)
        else:
            log_q = hypergeom.logpmf(self.k, law.population, law.marked, law.draws)
        self.log_q: Floats = log_q - logsumexp(log_q)
        self.log_c: Floats = self.log_q - 0.5 * (self.a * self.k) ** 2

    def window(self, x_low: float, x_high: float, bits: float = 0.0) -> tuple[int, int]:
        """The least and the largest k felt anywhere in the range, to e^-110 or the given bits."""
        deep = max(_NEGLIGIBLE, bits * math.log(2) + 20.0)
        low, high = (self.log_c + self.a * self.k * x for x in (x_low, x_high))
        return felt(low, deep)[0], felt(high, deep)[1]

    def at(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """ℓ, posterior mean and variance of k."""
        losses, means, variances = [], [], []
        for part in np.array_split(x, max(1, x.size // 256)):
            low, high = self.window(float(part[0]), float(part[-1]))
            k = self.k[low : high + 1]
            terms = self.log_c[low : high + 1] + self.a * k * part[:, None]
            top = terms.max(axis=1)
            weights = np.exp(terms - top[:, None])
            mass = weights.sum(axis=1)
            mean = weights @ k / mass
            means.append(mean)
            variances.append((weights * (k - mean[:, None]) ** 2).sum(axis=1) / mass)
            losses.append(top + np.log(mass))
        return np.concatenate(losses), np.concatenate(means), np.concatenate(variances)

    def root(self, target: float) -> float:
        """About the x with ℓ(x) = ``target``; ℓ rises.

        Raises:
            ArithmeticError: there is none within 1e12.
        """

        def above(x: float) -> bool:
            return float(self.at(np.array([x]))[0][0]) >= target

        low, high = -1.0, 1.0
        while above(low) or not above(high):
            low, high = 2 * low, 2 * high
            if high > 1e12:
                raise ArithmeticError("the loss nowhere comes to epsilon")
        return bisect(above, low, high, relative=1e-12, absolute=1e-12)


def felt(log_terms: Floats, deep: float) -> tuple[int, int]:
    """The first and the last of the terms that are above e^-``deep`` of the largest."""
    keep = np.flatnonzero(log_terms > log_terms.max() - deep)
    return int(keep[0]), int(keep[-1])


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the numerator of *remove* is cut: weight ½ erfc(sharpness·(x - place))."""

    place: float
    sharpness: float


@dataclass(frozen=True, slots=True)
class View:
    """One step on a grid of x: ℓ and the log of the weight that multiplies e^{bℓ} dx."""

    law: FloatLaw
    cut: Cut | None
    x: Floats
    loss: Floats
    log_weight: Floats

    def log_moments(self, b: Floats) -> Floats:
        """log ∫ e^{bℓ} φ (1-χ) dx for each b."""
        log_moments: Floats = logsumexp(b[:, None] * self.loss + self.log_weight, axis=1)
        return log_moments


@dataclass(frozen=True, slots=True)
class Plan:
    """What one direction is computed with.

    ``right``, ``left`` and ``best`` are orders of Chernoff's bound: for the aliases on either
    side, and the one that bounds δ itself best. ``log_delta`` is the guess at log δ, ``log_at_c``
    the log of M(c)^T e^{-cε}.
    """

    c: float
    period: float
    right: float
    left: float
    best: float
    view: View
    log_delta: float
    log_at_c: float


def _dyadic(value: float, bits: int = 12) -> float:
    """``value`` with few bits, so that its multiples are exact in floats."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**bits), exponent - bits)


def _view(law: FloatLaw, cut: Cut | None, furthest: float, most: float) -> View:
    if cut is None:
        # e^{-cℓ} tilts to the left, at most to where -x = c ℓ'(x)
        left = 0.0
        while left > -1e7:
            _, mean, _ = law.at(np.array([left]))
            if -left > most * law.a * float(mean[0]) + 1.0:
                break
            left = 2 * left - 1.0
        x = np.concatenate([np.linspace(left - 18.0, -18.0, 2000)[:-1], np.linspace(-18, 18, 2000)])
        x = np.unique(x) if left < 0 else np.linspace(-19.0, 18.0, 2500)
        log_cut = np.zeros_like(x)
    else:
        near = min(cut.place + 12.0, furthest)
        x = np.linspace(-18.0, near, 3000)
        if furthest > near + 1.0:  # components far out count for large orders only
            x = np.concatenate([x[:-1], np.linspace(near, furthest, 1500)])
        log_cut = log_ndtr(-math.sqrt(2) * cut.sharpness * (x - cut.place))
    loss, _, _ = law.at(x)
    widths = np.gradient(x)
    log_weight = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + log_cut + np.log(widths)
    return View(law, cut, x, loss, log_weight)


def _place(law: FloatLaw, sharpness: float, log_mass: float) -> float:
    """The place of the cut beyond which Q has about the mass e^log_mass."""
    width = math.sqrt(1 + 0.5 / sharpness**2)

    def holds_it(place: float) -> bool:
        beyond = logsumexp(law.log_q + log_ndtr((law.a * law.k - place) / width))
        return float(beyond) <= log_mass

    keep = law.log_q > log_mass - 5
    high = law.a * float(law.k[keep][-1]) + width * float(-ndtri_exp(min(log_mass, -1.0))) + 5
    return _dyadic(bisect(holds_it, -40.0, high, absolute=0.01) + 0.02)


def _furthest(law: FloatLaw, cut: Cut, a: float) -> float:
    """Beyond this x the integrand of order 1 + a is dead, for either of the bounds of its end."""
    square = cut.sharpness**2
    slope = ((1 + a) * law.a * float(law.k[-1]) + 2 * square * cut.place) / (1 + 2 * square)
    far = slope + 15.0
    if square > 0.51 * a:
        # a x²/2 = κ²(x - place)² has its larger root here
        root = cut.place / (1 - math.sqrt(a / 2 / square)) if a < 2 * square else math.inf
        far = min(far, root + 6.0)
    return far


@dataclass(frozen=True, slots=True)
class Problem:
    """What is asked: δ(``epsilon``) of one direction, *remove* or *add*, of sampled ``steps``.

    ``log_tolerance`` is the log of the error, relative to δ, that each source may leave.
    """

    steps: Steps
    epsilon: float
    remove: bool
    log_tolerance: float


def make_plan(problem: Problem, log_delta: float | None) -> Plan:
    """The line, its step and the cut. ``log_delta``: a guess at log δ, when there is one."""
    law = FloatLaw(problem.steps)
    guess = -5.0 if log_delta is None else log_delta
    for _ in range(16):
        best: Plan | None = None
        for square in (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0) if problem.remove else (0.0,):
            plan = _try(problem, law, square, guess)
            if plan is None:
                continue
            # a sharper cut costs nodes: it must gain something
            if best is not None and plan.log_at_c > best.log_at_c - 2.0:
                break
            best = plan
        if best is None:
            raise ArithmeticError("no line was found along which this sum can be taken")
        log_sum = best.log_at_c - 1.0
        if log_delta is not None or log_sum > guess - 3.0:
            break
        # the cut took about e^(guess + log_tolerance): a smaller sum than that tells nothing
        guess = max(log_sum - 3.0, 1.5 * guess + problem.log_tolerance)
    assert best is not None
    return best


def _cut_view(
    problem: Problem, law: FloatLaw, square: float, guess: float, widest: float
) -> tuple[View, float]:
    """The step on its grid, cut with κ² = ``square`` (0: uncut), and the largest order for it."""
    if square == 0:
        return _view(law, None, 0.0, widest), widest
    sharpness = math.sqrt(square)
    log_mass = guess + problem.log_tolerance - math.log(2 * problem.steps.count)
    cut = Cut(_place(law, sharpness, log_mass), sharpness)
    # beyond order 2κ² the cut does not outweigh e^{a x²/2} of components far out
    most = min(widest, 1.9 * square) if law.a * law.k[-1] > 30 else widest
    return _view(law, cut, max(_furthest(law, cut, most), cut.place + 10.0), most), most


def _try(problem: Problem, law: FloatLaw, square: float, guess: float) -> Plan | None:
    """The plan with the fewest nodes for one sharpness of the cut; None without room for a line."""
    widest = 1e4
    while True:
        view, most = _cut_view(problem, law, square, guess, widest)
        orders = _LINES[most >= _LINES]
        log_moments = view.log_moments(1 + orders if problem.remove else -orders)
        log_moments *= problem.steps.count
        chern = log_moments - orders * problem.epsilon
        saddle = int(np.argmin(chern - np.log(orders) - np.log1p(orders)))
        if saddle < orders.size - 4 or most < widest or widest >= 1e7:
            break
        widest *= 30  # tiny losses want large orders, and these a wide and coarse view
    bound = chern + orders * np.log(orders) - (1 + orders) * np.log1p(orders)
    log_delta = min(float(bound.min()), 0.0) - 1.0
    want = min(guess, log_delta) + problem.log_tolerance
    best: tuple[float, float, int, int, int | None] | None = None
    for at in range(max(1, saddle - 20), min(orders.size - 2, saddle + 12)):
        c = float(orders[at])
        right = np.maximum(bound[at + 1 :] - want, 0.1) / (orders[at + 1 :] - c)
        left = np.maximum(bound[:at] - want, 0.1) / (c - orders[:at])
        r, q = int(np.argmin(right)), int(np.argmin(left))
        without_order = -want / c  # by δ ≤ 1
        period = max(float(right[r]), min(float(left[q]), without_order))
        # nodes grow with the period; cancellation is paid in bits
        cost = math.log(period) + 0.01 * max(float(chern[at] - chern[saddle]), 0.0)
        if best is None or cost < best[0]:
            best = (cost, period, at, at + 1 + r, None if without_order < left[q] else q)
    if best is None:
        return None
    _, period, at, above, below = best
    return Plan(
        c=_dyadic(float(orders[at])),
        period=period * 1.02,
        right=_dyadic(float(orders[above])),
        left=0.0 if below is None else _dyadic(float(orders[below])),
        best=_dyadic(float(orders[int(np.argmin(bound))])),
        view=view,
        log_delta=log_delta,
        log_at_c=float(chern[at]),
    )
