r"""δ(ε) of T steps, enclosed in both directions, or why it could not be.

Beside the sums along a line (`line_sum`) stand closed forms in balls: one step, pure Gaussians, and
bounds that need no sum (docs/proof.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.special import log_ndtr

from userdp.accounting.item_count_laws import Binomial
from userdp.accounting.proof.line_sum import LOG_TOLERANCE, OneWay, sum_delta
from userdp.accounting.proof.planning import FloatLaw, Problem, felt
from userdp.accounting.proof.step_law import (
    Ball,
    Ratio,
    Steps,
    chance,
    expectation,
    flint_library,
    float_above,
    float_below,
    growth,
)

_MOST_BITS = 4096
_SMALL_ENOUGH = 1e-13


def _tail(x: Ball) -> Ball:
    """Pr[N(0, 1) ≥ x]."""
    return (x / flint_library().arb(2).sqrt()).erfc() / 2


def _refined(value: Callable[[int], Ball], how: str, bits: int) -> OneWay:
    """``value`` at ``bits`` of precision, doubled until the ball is narrow."""
    while True:
        with flint_library().ctx.workprec(bits):
            ball = value(bits)
            lower, upper = float_below(ball), min(float_above(ball), 1.0)
        enclosure = OneWay(max(min(lower, upper), 0.0), max(upper, 0.0), how, bits)
        if enclosure.relative_width < _SMALL_ENOUGH or bits >= _MOST_BITS:
            return enclosure
        bits *= 2


def gaussian_delta(variance: Ball, epsilon: float) -> OneWay:
    r"""δ(ε) of one Gaussian mechanism with μ² = ``variance``, equal in both directions.

    Source: Balle and Wang 2018, Theorem 8: Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).
    """

    def value(_: int) -> Ball:
        mu, at = variance.sqrt(), flint_library().arb(epsilon)
        return _tail(at / mu - mu / 2) - at.exp() * _tail(at / mu + mu / 2)

    return _refined(value, "closed form", 128)


def dominating_variance(steps: Steps) -> Ball:
    """μ² of a Gaussian that is easier to tell apart: each step has its largest shift.

    Q^T is a mixture over the sequences of shifts of Gaussians of at most this norm, and H is
    jointly convex and grows with the norm.
    """
    return steps.count * (steps.unit * steps.law.most) ** 2


def participation(steps: Steps) -> Ball:
    """T (1 - q_0): δ is at most the chance that the user takes part at all."""
    return steps.count * (1 - chance(steps.law, 0))


def add_is_zero(steps: Steps, epsilon: float) -> bool:
    """Whether *add* is certainly 0: no loss -Σ ℓ exceeds -T log q_0, as ℓ ≥ log q_0."""
    flint = flint_library()
    with flint.ctx.workprec(256):
        return bool(flint.arb(epsilon) >= -steps.count * chance(steps.law, 0).log())


def single_step_delta(steps: Steps, epsilon: float, *, remove: bool) -> OneWay:
    r"""δ(ε) of one step, by the Neyman-Pearson set where the loss exceeds ε.

    ℓ increases on the axis, so the set is {x > r} with ℓ(r) = ε (*remove*), or {x < r} with
    ℓ(r) = -ε (*add*). r is enclosed between two points where ℓ is certainly below and above.

    Raises:
        ArithmeticError: the root was not enclosed.
    """
    law = FloatLaw(steps)
    start = law.root(epsilon if remove else -epsilon)
    return _refined(
        lambda bits: _one_step(steps, law, start, epsilon, remove, bits),
        "one step, closed form",
        256,
    )


def _one_step(
    steps: Steps, law: FloatLaw, start: float, epsilon: float, remove: bool, bits: int
) -> Ball:
    arb = flint_library().arb
    near = (start - 0.5, start + 0.5)
    ratio = Ratio(steps, law.window(*near, bits), near)
    target = arb(epsilon) if remove else -arb(epsilon)
    r = arb(start)
    for _ in range(14):
        loss, mean, _ = ratio.at(r)
        r = (r - (loss - target) / (ratio.a * mean)).mid()
    width = arb(2) ** (-int(0.8 * bits))
    for _ in range(40):
        if ratio.at(r - width)[0] < target and ratio.at(r + width)[0] > target:
            break
        width *= 16
    else:
        raise ArithmeticError("the root of the loss was not enclosed")
    root = r + arb(0, width)
    if not abs(root - arb(start)) < arb(0.5):
        raise ArithmeticError("the root of the loss left its window")
    chance = _mixture_tail(steps, law, root, bits, above=remove)
    if remove:
        return chance - arb(epsilon).exp() * _tail(root)
    return _tail(-root) - arb(epsilon).exp() * chance


def _mixture_tail(steps: Steps, law: FloatLaw, root: Ball, bits: int, *, above: bool) -> Ball:
    """Q(x > root), or Q(x < root): the normal tail is log-concave, as `expectation` asks."""
    sign = 1 if above else -1
    size = law.log_q + log_ndtr(sign * (law.a * law.k - float(root.mid())))
    window = felt(size, bits * math.log(2) + 20)
    return expectation(steps.law, window, lambda k: _tail(sign * (root - steps.unit * k)))


def binomial_tail_added(
    delta: float, epsilon: float, units: Binomial, *, cap: int, count: int
) -> float:
    """``delta`` + (1 + e^ε) τ with τ = ``count``·Pr[units > ``cap``], rounded up; at most 1.

    A run whose batches are cut at ``cap`` differs from the uncut one with probability at most τ on
    either data set, which costs at most (1 + e^ε) τ.
    """
    if cap >= units.trials:
        return delta
    if units.probability == 1:
        return 1.0
    flint = flint_library()
    with flint.ctx.workprec(256):
        weight, tail = chance(units, cap + 1), flint.arb(0)
        for k in range(cap + 1, units.trials + 1):
            tail += weight
            if k == units.trials:
                break
            ratio = growth(units, k)  # falls with k: what is left is at most a geometric series
            weight *= ratio
            if ratio < 1 and weight <= tail * flint.arb(2) ** -60:
                tail += weight / (1 - ratio)
                break
        return min(
            1.0, float_above(flint.arb(delta) + (1 + flint.arb(epsilon).exp()) * count * tail)
        )


@dataclass(frozen=True, slots=True)
class Enclosure:
    """lower ≤ δ(ε) ≤ upper, proven; ``remove`` and ``add`` one by one.

    ``why`` is empty where both directions were summed; else what kept one from it (its bounds
    still hold, and are wide).
    """

    epsilon: float
    remove: OneWay
    add: OneWay
    seconds: float
    why: str = ""

    @property
    def lower(self) -> float:
        return max(self.remove.lower, self.add.lower)

    @property
    def upper(self) -> float:
        return max(self.remove.upper, self.add.upper)

    @property
    def bits(self) -> int:
        """The largest precision that was used."""
        return max(self.remove.bits, self.add.bits)

    @property
    def relative_width(self) -> float:
        """(upper - lower) / upper; 0 for an exact 0."""
        return (self.upper - self.lower) / self.upper if self.upper > 0 else 0.0


def enclose_delta(steps: Steps, epsilon: float, *, size: float = 0.0) -> Enclosure:
    """Enclose δ(ε) of all ``steps``, for add-or-remove adjacency.

    Guarantee: the bounds hold for the law and the ε given, as exact dyadic numbers; each operation
    between them and the floats returned is one on balls (docs/proof.md). It says nothing about
    whether this law dominates a training algorithm.

    Args:
        steps: what was priced.
        epsilon: ≥ 0, finite.
        size: about how large δ is, where that is known; else 0. It is not relied upon.

    Raises:
        UseError: python-flint is not installed.
    """
    flint = flint_library()
    started = time.process_time()
    with flint.ctx.workprec(256):
        dominating = gaussian_delta(dominating_variance(steps), epsilon)
        if steps.is_gaussian:
            return Enclosure(epsilon, dominating, dominating, time.process_time() - started)
        capped = min(float_above(participation(steps)), dominating.upper)
    ways: list[OneWay] = []
    reasons: list[str] = []
    for remove in (True, False):
        if not remove and add_is_zero(steps, epsilon):
            ways.append(OneWay(0.0, 0.0, "exactly 0", 256))
            continue
        try:
            if steps.count == 1:
                way = single_step_delta(steps, epsilon, remove=remove)
            else:
                way = sum_delta(Problem(steps, epsilon, remove, LOG_TOLERANCE), size)
        except ArithmeticError as error:
            way = OneWay(0.0, 1.0, "none", why=str(error))
        if way.why:
            reasons.append(f"{'remove' if remove else 'add'}: {way.why}")
        if capped < way.upper:
            way = replace(way, upper=capped, how=f"{way.how}, dominating bound")
        ways.append(way)
    return Enclosure(epsilon, ways[0], ways[1], time.process_time() - started, "; ".join(reasons))
