r"""δ(ε) of one direction, enclosed by a sum along Re s = c.

.. math:: S = \frac{h}{2π} \sum_j M(s_j)^T e^{-s_jε} / (s_j(s_j+1)), \qquad s_j = c + ijh,

equals Σ_m δ(ε + mΛ) e^{cmΛ} with Λ = 2π/h (docs/proof.md, Theorem 1): δ ≤ S, and the terms m ≠ 0
are bounded by Chernoff's inequality.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from userdp.accounting.certified_search import bisect
from userdp.accounting.proof.cells import dropped_mass
from userdp.accounting.proof.moment import Moment
from userdp.accounting.proof.planning import Plan, Problem, make_plan
from userdp.accounting.proof.step_law import Ball, flint_library, float_above, float_below

LOG_TOLERANCE = math.log(1e-11)  # of each source of error, relative to δ
_WANTED = 1e-9  # relative width at which no other plan is tried
_MOST_PRODUCTS = 8e7  # nodes in u times nodes in x, at 128 bits: some 6 s
_MOST_TERMS = 300_000
_SMOOTHED = 1e-7  # relative error that smoothing may leave, where the sum needs it
_LOG_SMOOTHED = math.log(4e-9)  # in place of LOG_TOLERANCE, where smoothing costs more anyway
_LEAST_BITS, _MOST_BITS = 128, 600


@dataclass(frozen=True, slots=True)
class OneWay:
    """lower ≤ δ(ε) ≤ upper of one direction, how it was found, and why no better."""

    lower: float
    upper: float
    how: str
    bits: int = 0
    why: str = ""

    @property
    def relative_width(self) -> float:
        """(upper - lower) / upper; 0 for an exact 0."""
        return (self.upper - self.lower) / self.upper if self.upper > 0 else 0.0


def _moment(
    problem: Problem, plan: Plan, order: float, log_error: float, bits: int, *, real: bool
) -> Moment:
    """M(``order`` + iu) of one step, with this error relative to M(``order``), in logs."""
    arb = flint_library().arb
    b = 1 + arb(order) if problem.remove else -arb(order)
    log_m = float(plan.view.log_moments(np.array([float(b.mid())]))[0])
    return Moment(problem.steps, plan.view, b, log_m + log_error, bits, real=real)


def _dropped(problem: Problem, plan: Plan, bits: int) -> Ball:
    """An upper bound of the mass that the cuts of all steps take from the numerator."""
    return problem.steps.count * dropped_mass(problem.steps, plan.view, bits)


class _TooManyTermsError(ArithmeticError):
    """The sum has to be smoothed: nothing is gained by tight tolerances elsewhere."""


def sum_delta(problem: Problem, size: float) -> OneWay:
    """Enclose δ(ε) of one direction.

    Guarantee: ``lower`` ≤ δ(ε) ≤ ``upper`` for the pair of laws given, whatever was planned.

    Args:
        problem: its ε is taken as the dyadic number that it is.
        size: about how large δ is, where that is known; else 0. It is not relied upon.

    Where the sum does not come within the limits on nodes, ``upper`` is Chernoff's bound (or 1),
    ``lower`` is 0, and ``why`` says what stopped it.
    """
    best = OneWay(0.0, 1.0, "trivial")
    guess = math.log(size) if size > 0 else None
    for turn in range(3):
        try:
            try:
                enclosure = _along(problem, make_plan(problem, guess), guess)
            except _TooManyTermsError:
                problem = replace(problem, log_tolerance=_LOG_SMOOTHED)
                enclosure = _along(problem, make_plan(problem, guess), guess)
        except ArithmeticError as error:
            if turn:
                break
            return replace(_upper_only(problem, guess), why=str(error))
        lower, upper = max(best.lower, enclosure.lower), min(best.upper, enclosure.upper)
        if lower > upper:
            raise AssertionError("two enclosures of one number do not meet")
        better = enclosure if enclosure.relative_width <= best.relative_width or turn == 0 else best
        best = OneWay(lower, upper, better.how, better.bits)
        if best.relative_width <= _WANTED or best.upper <= 1e-300:
            break
        known = (
            guess is not None and enclosure.lower > 0 and abs(math.log(enclosure.upper) - guess) < 1
        )
        if enclosure.how == "smoothed sum" and (known or enclosure.relative_width < 20 * _SMOOTHED):
            break  # another plan would cost as much and end as wide
        # a second look, with the size of δ known
        middle = best.upper if best.lower <= 0 else best.lower
        if turn and guess is not None and math.log(middle) > guess - 0.5:
            break
        guess = math.log(middle) if middle > 0 else (guess or -5.0) - 40.0
    return best


def _along(problem: Problem, plan: Plan, guess: float | None) -> OneWay:
    log_delta = plan.log_delta if guess is None else min(guess, plan.log_delta)
    # what one unit of relative error of M(c) does to δ, in logs
    per_unit = plan.log_at_c - log_delta + math.log(problem.steps.count) - math.log(plan.c)
    per_unit = max(per_unit, 0.0)
    bits = _LEAST_BITS
    need = 60 + (per_unit - problem.log_tolerance) / math.log(2)
    while bits < need:
        bits += 32
    log_error = problem.log_tolerance - per_unit
    while True:
        with flint_library().ctx.workprec(bits):
            moment = _moment(problem, plan, plan.c, log_error, bits, real=False)
            along = _Sum(problem, plan, moment, log_delta)
            enclosure = along.enclose(bits)
        if not along.blurred or bits > _MOST_BITS:
            return enclosure
        bits += 96


def _kappa(a: Ball) -> Ball:
    """a^a / (1+a)^{1+a}: the least κ with 1 - e^{-y} ≤ κ e^{ay} for all y."""
    if a == 0:
        return flint_library().arb(1)
    return (a * a.log() - (1 + a) * (1 + a).log()).exp()


class _Sum:
    """The sum along Re s = c from one plan, at the precision of the surrounding context."""

    def __init__(self, problem: Problem, plan: Plan, moment: Moment, log_delta: float) -> None:
        self.problem, self.plan, self.moment, self.log_delta = problem, plan, moment, log_delta
        arb = flint_library().arb
        self.c, self.epsilon = arb(plan.c), arb(problem.epsilon)
        mantissa, exponent = math.frexp(2 * math.pi / plan.period)
        self.h = arb(math.ldexp(math.floor(mantissa * 2**20), exponent - 20))
        self.float_h = float(self.h)
        self.blurred = False
        self.tail_lines = moment.tail_lines()

    # ------------------------------------------------------------ how far (floats)

    def _log_tail(self, u: float, smoothing: float) -> float:
        value = -self.plan.c * self.problem.epsilon - math.log(math.pi * u)
        value += 0.5 * smoothing * (self.plan.c * (self.plan.c + 1) - u * u)
        return value + self.problem.steps.count * min(line.log_bound(u) for line in self.tail_lines)

    def _terms(self, smoothing: float) -> float:
        """How many terms there are up to the U at which the tail is small enough."""
        goal = self.log_delta + self.problem.log_tolerance

        def is_small(u: float) -> bool:
            return self._log_tail(u, smoothing) <= goal

        low, high = 0.0, self.float_h
        while not is_small(high):
            low, high = high, high * 2
            if high > 1e14:
                return math.inf
        return bisect(is_small, low, high, relative=0.01, absolute=self.float_h) / self.float_h + 2

    # ------------------------------------------------------------ the bound (balls)

    def enclose(self, bits: int) -> OneWay:
        flint = flint_library()
        arb, acb = flint.arb, flint.acb
        problem, c, h, count = self.problem, self.c, self.h, self.problem.steps.count
        cheap = (_LEAST_BITS / bits) ** 1.3
        most = max(64, int(min(cheap * _MOST_PRODUCTS / len(self.moment.points), _MOST_TERMS)))
        smoothing = 0.0
        needed = self._terms(0.0)
        if needed > most:
            if problem.log_tolerance < _LOG_SMOOTHED:
                raise _TooManyTermsError("the sum along the line is too long")
            smoothing = _SMOOTHED / (self.plan.c * (self.plan.c + 1))
            while (needed := self._terms(smoothing)) > most:
                smoothing *= 1.5
                if smoothing > 1e6:
                    raise ArithmeticError("the sum along the line is too long")
        terms = int(needed)
        v = arb(smoothing)
        values = self.moment.values(h, terms)
        sums, density = arb(0), arb(0)
        for j, value in enumerate(values):
            s = acb(c, h * j)
            term = (v * s * (s + 1) / 2 - s * self.epsilon).exp()
            term *= (value if problem.remove else value.conjugate()) ** count
            share = (term / (s * (s + 1))).real
            sums += share if j == 0 else 2 * share
            if smoothing:
                density += term.real if j == 0 else 2 * term.real
        unit = h / (2 * arb.pi())
        sums *= unit
        end = h * terms
        level = (-c * self.epsilon + v * (c * (c + 1) - end**2) / 2).exp()
        best = min(self.tail_lines, key=lambda line: line.log_bound(float(end)))
        level *= best.bound(end) ** count
        tail = (level / arb.pi() * (1 / end + h / end**2)).upper()
        period = 2 * arb.pi() / h
        chern_right = _chernoff(problem, self.plan, self.plan.right, v)
        excess = chern_right / (((arb(self.plan.right) - c) * period).exp() - 1)
        if self.plan.left > 0:
            chern_left = _chernoff(problem, self.plan, self.plan.left, v)
            excess += chern_left / (((c - arb(self.plan.left)) * period).exp() - 1)
        else:
            excess += 1 / ((c * period).exp() - 1)
        dropped = _dropped(problem, self.plan, bits)
        upper = sums + tail
        smoothed = arb(0)
        if smoothing:
            density = density * unit + (level / arb.pi()) * (h + 1 / (v * end))
            smoothed = v * (v / 8).exp() * density
        lower = sums - tail - excess - smoothed
        cap = chern_right if chern_right < upper else upper
        if not (upper.is_finite() and lower.is_finite()):
            raise ArithmeticError("the balls grew without bound")
        rounded = any(values[j].real.rad() > 2 * self.moment.error for j in (0, -1))
        blur = max(100 * math.exp(problem.log_tolerance), 1e-9)
        self.blurred = rounded and bool(sums.rad() > sums.mid() * arb(blur))
        how = "smoothed sum" if smoothing else "sum"
        above = min(float_above(cap + dropped), 1.0)
        return OneWay(max(float_below(lower), 0.0), above, how, bits)


def _chernoff(problem: Problem, plan: Plan, order: float, smoothing: Ball) -> Ball:
    """κ(a) M(a)^T e^{-aε}, an upper bound of δ(ε') e^{a(ε'-ε)} for every ε'."""
    flint = flint_library()
    arb, count = flint.arb, problem.steps.count
    a = arb(order)
    with flint.ctx.workprec(_LEAST_BITS):
        value = _kappa(a) * (smoothing * a * (a + 1) / 2 - a * arb(problem.epsilon)).exp()
        moment = _moment(problem, plan, order, math.log(0.05 / count), _LEAST_BITS, real=True)
        return (value * moment.at_zero() ** count).upper()


def _upper_only(problem: Problem, guess: float | None) -> OneWay:
    """Chernoff's bound alone, or [0, 1] where even that fails."""
    try:
        plan = make_plan(problem, guess)
        bound = _chernoff(problem, plan, plan.best, flint_library().arb(0))
        upper = float_above(bound + _dropped(problem, plan, _LEAST_BITS))
    except ArithmeticError:
        return OneWay(0.0, 1.0, "none")
    return OneWay(0.0, min(upper, 1.0), "upper bound only", _LEAST_BITS)
