"""An mpmath oracle for δ(ε) of composed mixtures of Gaussians: slow, plain, independent.

Nothing of `userdp` is imported and no bound of the accountant is used. P = N(0, σ²) and
Q = N(Binom(G, p), σ²); ℓ = log Q/P. ``remove`` is H_{e^ε}(Q^T, P^T), ``add`` is
H_{e^ε}(P^T, Q^T) (Charles et al. 2024, Theorem 3). Four ways, chosen by the arguments:

========================  =====================================================================
``closed-form``           p = 1: one Gaussian of shift G√T/σ
``tail``                  T = 1: Q(S) - e^ε P(S) on the half line S where the loss exceeds ε
``nested``                T = 2: the expectation, over one step, of the T = 1 answer at the ε left
``inversion``             T >= 3: trapezoidal inversion of the Laplace transform of the loss
========================  =====================================================================

``inversion`` is repeated on another vertical line with another step, another x-grid and a longer
range; `Answer.agreement` is the relative difference of the two. An error of aliasing, truncation
or quadrature differs between the two lines, so agreement to 1e-16 means 16 digits.

Parameters are doubles and are taken exactly (0.1 is 0.1000000000000000055...).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import mpmath
import numpy as np
from mpmath import mp, mpc, mpf

Direction = Literal["remove", "add"]

DIGITS = 42  # working digits: 30 are wanted, T up to 1e6 costs 6, the rest is margin
_FIXED_BITS = 190  # fixed-point fraction bits of the phase recurrence (57 digits)


@dataclass(frozen=True)
class Answer:
    """δ as an mpf, how it was found, and the relative difference of two computations of it."""

    value: mpf
    method: str
    agreement: float


def delta(
    direction: Direction,
    epsilon: float,
    *,
    steps: int,
    p: float,
    sigma: float,
    group_size: int,
    at_least: float | None = None,
) -> Answer:
    """δ of the T-fold composition in one direction, to about 16 digits or better.

    ``at_least``: a number below δ, within a few orders of magnitude (used for T >= 3 only, to
    leave out what cannot matter). None: guessed, and guessed again until it holds. A δ that turns
    out smaller, or one below 1e-150, is an `ArithmeticError`.
    """
    with mp.workdps(DIGITS):
        if p == 1:
            return _closed_form(epsilon, steps, sigma, group_size)
        if direction == "add" and epsilon >= -steps * group_size * mpmath.log1p(-mpf(p)):
            return Answer(mpf(0), "no loss exceeds -T G log(1-p)", 0.0)
        if steps == 1:
            return _tail(direction, epsilon, p, sigma, group_size)
        if steps == 2:
            return _nested(direction, epsilon, p, sigma, group_size)
        args = (direction, epsilon, steps, p, sigma, group_size)
        guesses = _guesses(*args) if at_least is None else iter([at_least])
        for guess in guesses:
            first = _invert(*args, guess, variant=0)
            if first >= guess:
                second = _invert(*args, guess, variant=1)
                agreement = float(abs(first - second) / first)
                if not agreement < 1e-12:
                    raise ArithmeticError(f"the two lines differ by {agreement:.1e}")
                return Answer(first, "inversion", agreement)
        raise ArithmeticError("delta is below every guess")


def _guesses(
    direction: Direction, epsilon: float, steps: int, p: float, sigma: float, group_size: int
) -> Iterator[float]:
    """Falling guesses of a number below δ, from the saddle-point approximation."""
    planner = _Planner(direction, _Step(p, sigma, group_size), steps, epsilon)
    c = planner.saddle()
    k, _, second = planner.cumulants(c)
    width = math.sqrt(steps * second + 1 / c**2 + 1 / (1 + c) ** 2)
    exponent = (steps * k - c * epsilon - math.log(c * (c + 1) * width * 2.5)) / math.log(10) - 2
    while exponent > -150:
        yield 10.0**exponent
        exponent -= 4


# ------------------------------------------------------------------------ p = 1


def _closed_form(epsilon: float, steps: int, sigma: float, group_size: int) -> Answer:
    """Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), μ = G √T / σ (Balle and Wang 2018, Theorem 8)."""
    values = []
    for digits in (300, 400):
        with mp.workdps(digits):
            mu = mpf(group_size) * mpmath.sqrt(steps) / mpf(sigma)
            e = mpf(epsilon)
            upper = mpmath.ncdf(mu / 2 - e / mu)
            values.append(upper - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu))
    return Answer(+values[1], "closed-form", float(abs(values[0] / values[1] - 1)))


# ------------------------------------------------------------------------ T = 1


class _Step:
    """One step: Q's weights and ℓ, at the working precision of the moment."""

    def __init__(self, p: float, sigma: float, group_size: int, dropped: float = 0.0) -> None:
        """``dropped``: the largest binomial tail mass that may be left out."""
        self.sigma, self.group_size = mpf(sigma), group_size
        prob = mpf(p)
        self.floor = group_size * mpmath.log1p(-prob)  # ℓ(-∞)
        self.weights = [
            mpmath.binomial(group_size, k) * prob**k * (1 - prob) ** (group_size - k)
            for k in range(group_size + 1)
        ]
        tail = mpf(0)
        while dropped > 0 and tail + self.weights[-1] <= dropped:
            tail += self.weights.pop()
        gauss = [mpmath.exp(-(mpf(k) ** 2) / (2 * self.sigma**2)) for k in range(len(self.weights))]
        self.coefficients = [w * g for w, g in zip(self.weights, gauss, strict=True)]
        self.descending = self.coefficients[::-1]

    def ratio(self, x: mpf) -> mpf:
        """Q(x)/P(x) = Σ_k B_k e^{-k²/2σ²} (e^{x/σ²})^k, by Horner's rule."""
        return mpmath.polyval(self.descending, mpmath.exp(x / self.sigma**2))

    def loss(self, x: mpf) -> mpf:
        return mpmath.log(self.ratio(x))

    def root(self, level: mpf) -> mpf:
        """The x with ℓ(x) = level (> floor). In t = e^{x/σ²} the ratio is a convex increasing
        polynomial, so Newton's method from the right converges monotonically."""
        target = mpmath.exp(level)
        t = mpf(2) ** 8
        while mpmath.polyval(self.descending, t) < target:
            t = t * t
        tiny = mpf(10) ** (-mp.dps + 3)
        for _ in range(100_000):
            value, slope = mpmath.polyval(self.descending, t, derivative=True)
            step = (value - target) / slope
            t -= step
            if abs(step) <= tiny * t:
                return self.sigma**2 * mpmath.log(t)
        raise ArithmeticError("no root")

    def tail(self, direction: Direction, epsilon: mpf) -> mpf:
        """H_{e^ε} of one step, any real ε. Cancels: use plenty of digits."""
        if direction == "remove":
            if epsilon <= self.floor:
                return 1 - mpmath.exp(epsilon)
            x = self.root(epsilon)
            q_mass = mpmath.fsum(
                w * _upper_tail((x - k) / self.sigma) for k, w in enumerate(self.weights)
            )
            return q_mass - mpmath.exp(epsilon) * _upper_tail(x / self.sigma)
        if -epsilon <= self.floor:
            return mpf(0)
        x = self.root(-epsilon)
        q_mass = mpmath.fsum(
            w * _upper_tail((k - x) / self.sigma) for k, w in enumerate(self.weights)
        )
        return _upper_tail(-x / self.sigma) - mpmath.exp(epsilon) * q_mass


def _upper_tail(z: mpf) -> mpf:
    return mpmath.erfc(z / mpmath.sqrt(2)) / 2


def _tail(direction: Direction, epsilon: float, p: float, sigma: float, group_size: int) -> Answer:
    values = []
    for digits in (260, 330):
        with mp.workdps(digits):
            values.append(_Step(p, sigma, group_size).tail(direction, mpf(epsilon)))
    return Answer(+values[1], "tail", float(abs(values[0] / values[1] - 1)))


# ------------------------------------------------------------------------ T = 2


def _nested(
    direction: Direction, epsilon: float, p: float, sigma: float, group_size: int
) -> Answer:
    """E over the first step's x of the one-step δ at what is left of ε.

    remove: ∫ Q(x) δ₁(ε - ℓ(x)) dx; add: ∫ P(x) δ₁(ε + ℓ(x)) dx. Gauss-Legendre on panels of
    one noise standard deviation; the panel edges include the x where δ₁'s argument leaves the
    range of the loss (there δ₁ is smooth but not analytic). Twice: higher degree, wider range.
    """
    with mp.workdps(70):
        step = _Step(p, sigma, group_size)
        e, s = mpf(epsilon), mpf(sigma)
        one_step = lru_cache(maxsize=None)(lambda level: step.tail(direction, level))
        root_2pi = mpmath.sqrt(2 * mpmath.pi)

        def integrand(x: mpf) -> mpf:
            normal = mpmath.exp(-((x / s) ** 2) / 2) / (s * root_2pi)
            loss = step.loss(x)
            if direction == "remove":
                return normal * mpmath.exp(loss) * one_step(e - loss)
            return normal * one_step(e + loss)

        kink = step.root(e - step.floor if direction == "remove" else -step.floor - e)
        low, high, most = -16 * s, group_size + 16 * s, mpf(0)
        if direction == "remove":  # a rare large loss may sit far to the right of G
            x = low
            while x < high or integrand(x) > most * mpf(10) ** -50:
                most, x = max(most, integrand(x)), x + s
            high = x
        else:  # to the right of the kink the rest of ε is out of reach
            high = min(kink, 16 * s)
            x = high - s
            while x > -16 * s or integrand(x) > most * mpf(10) ** -50:
                most, x = max(most, integrand(x)), x - s
            low = x
        values = []
        for degree, further in ((4, 0), (5, 2)):
            if direction == "remove":
                high += further * s
            else:
                low -= further * s
            width = s
            count = int(mpmath.ceil((high - low) / width))
            edges = [low + (high - low) * i / count for i in range(count + 1)]
            if low < kink <= high:
                # δ₁ joins its closed form with all derivatives zero: refine towards the kink.
                near = [kink] + [kink + sign * s / 2**j for j in range(12) for sign in (-1, 1)]
                edges = sorted({*edges, *(x for x in near if low < x < high)})
            values.append(
                mpmath.fsum(
                    mpmath.quad(integrand, [a, b], method="gauss-legendre", maxdegree=degree)
                    for a, b in itertools.pairwise(edges)
                )
            )
    return Answer(+values[1], "nested", float(abs(values[0] / values[1] - 1)))


# ------------------------------------------------------------------------ T >= 3


@dataclass(frozen=True)
class _Grid:
    """What double precision suggests for the inversion; mpmath checks it."""

    c: float
    spacing: float
    length: float
    x_low: float
    x_high: float


def _losses(x: np.ndarray, log_weights: np.ndarray, sigma: float) -> np.ndarray:
    """ℓ(x) in double precision, by log-sum-exp (for planning only)."""
    k = np.arange(len(log_weights), dtype=float)
    out = np.empty_like(x)
    for start in range(0, len(x), 2048):
        part = x[start : start + 2048, None]
        terms = log_weights + (2 * k * part - k * k) / (2 * sigma**2)
        top = terms.max(axis=1)
        out[start : start + 2048] = top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
    return out


class _Planner:
    """Double-precision cumulants of one step's loss, for choosing line, step and range."""

    def __init__(self, direction: Direction, step: _Step, steps: int, epsilon: float) -> None:
        self.direction, self.steps, self.epsilon = direction, steps, epsilon
        self.sigma = float(step.sigma)
        self.log_weights = np.array([float(mpmath.log(w)) for w in step.weights])

    def _on_grid(self, a: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """x, signed loss, log of the integrand of M(a), its peak."""
        reach, s = (a + 1) * (len(self.log_weights) - 1), self.sigma
        low, high = (
            (-14 * s, 14 * s + reach) if self.direction == "remove" else (-14 * s - reach, 14 * s)
        )
        x = np.linspace(low, high, max(4001, min(40_001, int((high - low) / s * 30))))
        loss = _losses(x, self.log_weights, s)
        exponent = (a + 1) * loss if self.direction == "remove" else -a * loss
        log_w = exponent - x * x / (2 * s * s)
        return x, loss if self.direction == "remove" else -loss, log_w, float(log_w.max())

    def cumulants(self, a: float) -> tuple[float, float, float]:
        """K(a), K'(a), K''(a) with K = log M."""
        x, signed, log_w, top = self._on_grid(a)
        w = np.exp(log_w - top)
        total = float(w.sum())
        mean = float((w * signed).sum() / total)
        second = float((w * (signed - mean) ** 2).sum() / total)
        dx = float(x[1] - x[0])
        return top + math.log(total * dx / (self.sigma * math.sqrt(2 * math.pi))), mean, second

    def saddle(self) -> float:
        low, high = 1e-9, 1e7
        while high / low > 1 + 1e-6:
            c = math.sqrt(low * high)
            too_far = self.steps * self.cumulants(c)[1] > self.epsilon + 1 / c + 1 / (1 + c)
            low, high = (low, c) if too_far else (c, high)
        return math.sqrt(low * high)

    def grid(self, c: float, log_delta: float) -> _Grid:
        """Step, range and x-interval on the line c, for errors near e^-52 of δ."""
        k, _, second = self.cumulants(c)
        width = math.sqrt(self.steps * second + 1 / c**2 + 1 / (1 + c) ** 2)

        def spacing_from(a: float) -> float:
            chernoff = self.steps * self.cumulants(a)[0] - a * self.epsilon
            kappa = a * math.log(a) - (1 + a) * math.log1p(a) if a > 0 else 0.0
            return (chernoff + kappa - log_delta + 52.0) / abs(a - c)

        right = min(spacing_from(c + (c + 1 / width) * 2.0**j) for j in range(-7, 5))
        left = min([spacing_from(c * (1 - 2.0**-j)) for j in range(1, 9)] + [spacing_from(0.0)])
        spacing = 2 * math.pi / max(left, right)

        x, signed, log_w, top = self._on_grid(c)
        keep = np.flatnonzero(log_w > top - 115)
        x_low, x_high = float(x[keep[0]]), float(x[keep[-1]])
        inside = np.linspace(x_low, x_high, 8001)
        signed = _losses(inside, self.log_weights, self.sigma)
        sign = 1 if self.direction == "remove" else -1
        power = c + 1 if self.direction == "remove" else c
        w = np.exp(sign * power * signed - inside**2 / (2 * self.sigma**2) - top)
        w /= w.sum()
        before = self.steps * k - c * self.epsilon - log_delta

        def size(u: float) -> float:
            phi = abs(np.sum(w * np.exp(1j * u * signed)))
            decay = self.steps * math.log(max(phi, 1e-300))
            return before + decay - 2 * math.log(math.hypot(c, u)) + math.log(u + c)

        u = 1 / width
        while max(size(u * f) for f in np.geomspace(1, 6, 20)) > -52.0:
            u *= 1.15
            if u / spacing > 3e6:
                u = math.inf
                break
        return _Grid(c, spacing, u, x_low, x_high)

    def best(self, log_delta: float, variant: int) -> _Grid:
        """The cheapest line (variant 0) or the next cheapest, stretched (variant 1)."""
        saddle = self.saddle()
        grids = [self.grid(saddle * f, log_delta) for f in (1.1, 1.0, 0.7, 0.45)]
        grids.sort(key=lambda g: g.length / g.spacing)
        found = grids[variant]
        if math.isinf(found.length):
            raise ArithmeticError("the transform decays too slowly for this oracle")
        if variant == 0:
            return found
        pad = (found.x_high - found.x_low) * 0.01
        return _Grid(
            found.c, found.spacing / 1.1, found.length * 1.2, found.x_low - pad, found.x_high + pad
        )


def _invert(
    direction: Direction,
    epsilon: float,
    steps: int,
    p: float,
    sigma: float,
    group_size: int,
    at_least: float,
    variant: int,
) -> mpf:
    """(1/2π) ∫ M(c+iu)^T e^{-(c+iu)ε} / ((c+iu)(c+1+iu)) du by the trapezoidal rule.

    M(c+iu) is itself a trapezoidal sum over x of a Gaussian-decaying analytic function; its step
    is halved until three values of u, the largest among them, stand to 1e-34. The phases
    e^{iuℓ(x)} on the uniform u-grid are powers, advanced by fixed-point multiplication.
    """
    factor = 1.0 if direction == "remove" else math.exp(-min(epsilon, 600.0))
    step = _Step(p, sigma, group_size, dropped=1e-24 * at_least / steps * factor)
    grid = _Planner(direction, step, steps, epsilon).best(math.log(at_least), variant)
    c, h, s = mpf(grid.c), mpf(grid.spacing), mpf(sigma)
    count = math.ceil(grid.length / grid.spacing)
    sign = 1 if direction == "remove" else -1
    power = c + 1 if direction == "remove" else c

    points: dict[mpf, tuple[mpf, mpf]] = {}  # x -> (signed loss, weight before dx)

    def sample(x: mpf) -> tuple[mpf, mpf]:
        if x not in points:
            loss = step.loss(x)
            points[x] = sign * loss, mpmath.exp(sign * power * loss - x * x / (2 * s * s))
        return points[x]

    low, high = mpf(grid.x_low), mpf(grid.x_high)
    intervals = max(32, math.ceil((high - low) / (s * min(mpf("0.6"), s * mpf("0.45")))))
    if variant:
        intervals = intervals * 5 // 4

    def transform(n: int) -> list[mpc]:
        dx = (high - low) / n
        data = [sample(low + (high - low) * mpf(j) / n) for j in range(n + 1)]
        mass = mpmath.fsum(w for _, w in data)
        probes = (count * h, count * h * mpf("0.4"), count * h * mpf("0.1"))
        phis = [mpmath.fsum(w * mpmath.expj(u * y) for y, w in data) / mass for u in probes]
        return [mass * dx, *phis]

    coarse = transform(intervals)
    while True:
        fine = transform(2 * intervals)
        change = max(abs(a - b) for a, b in zip(coarse[1:], fine[1:], strict=True))
        if change < mpf(10) ** -34 and abs(coarse[0] / fine[0] - 1) < mpf(10) ** -34:
            break
        intervals, coarse = 2 * intervals, fine
        if intervals > 400_000:
            raise ArithmeticError("the x-grid did not converge")

    data = [sample(low + (high - low) * mpf(j) / intervals) for j in range(intervals + 1)]
    mass = mpmath.fsum(w for _, w in data)
    log_m = mpmath.log(coarse[0] / (s * mpmath.sqrt(2 * mpmath.pi)))
    data = [(y, w / mass) for y, w in data if w > mass * mpf(10) ** -45]

    centre = mpf(epsilon) / steps  # put e^{-iuε} into the phases: fewer turns
    one = mpf(2) ** _FIXED_BITS
    re = np.array([int(w * one) for _, w in data], dtype=object)
    im = np.array([0] * len(data), dtype=object)
    turns = [mpmath.expj(h * (y - centre)) for y, _ in data]
    turn_re = np.array([int(t.real * one) for t in turns], dtype=object)
    turn_im = np.array([int(t.imag * one) for t in turns], dtype=object)

    total = 1 / (c * (c + 1)) / 2  # u = 0, halved: the sum runs over u > 0 and is doubled
    for k in range(1, count + 1):
        re, im = (
            (re * turn_re - im * turn_im) >> _FIXED_BITS,
            (re * turn_im + im * turn_re) >> _FIXED_BITS,
        )
        phi = mpc(mpf(int(re.sum())), mpf(int(im.sum()))) / one
        z = mpc(c, k * h)
        total += (phi**steps / (z * (z + 1))).real
    return total * h / mpmath.pi * mpmath.exp(steps * log_m - c * epsilon)
