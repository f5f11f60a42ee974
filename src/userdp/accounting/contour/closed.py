r"""Certified bounds, and closed forms: a pure Gaussian composition, and one single step (T = 1).

Legend: R(z) = e^{z^2/2} int_z^inf e^{-t^2/2} dt = sqrt(pi/2) erfcx(z/sqrt 2), the Mills ratio;
phi and Phi_c are the standard normal density and upper tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr

from userdp.accounting.contour.losses import Floats, Phase, ShiftLaw, losses
from userdp.accounting.contour.side import LOG_SQRT_2PI
from userdp.accounting.roots import bisect, outwards
from userdp.core.errors import FailureError

_ROUNDING = 1e-12  # relative; brackets carry their own allowances, so this is generous


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= truth <= upper."""

    lower: float
    upper: float

    def meet(self, other: Bounds) -> Bounds:
        """The intersection of two certified brackets.

        Raises:
            FailureError: there is none. Then one of the brackets is wrong, and no answer is better
                than either. Where they miss each other by rounding alone, the gap is the answer.
        """
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        if lower - upper > _ROUNDING * lower:
            raise FailureError(
                f"two certified brackets exclude each other: [{self.lower!r}, {self.upper!r}] and "
                f"[{other.lower!r}, {other.upper!r}]; one of them is wrong, so none is reported",
                hint="use another accountant for this setting, and report the setting as a bug",
            )
        return Bounds(min(lower, upper), max(lower, upper))

    def join(self, other: Bounds) -> Bounds:
        """Certified bounds of the larger of two quantities."""
        return Bounds(max(self.lower, other.lower), max(self.upper, other.upper))


_SPECIAL = 4e-15  # stated relative error of erfcx and of exp(log_ndtr) in the ranges used
LEAST_DELTA = 1e-289  # below, delta(eps) is only said to be below it (docs, Section 8)

# A difference that cancels to worse than this (relative) is left to the contour (docs, Section 7).
_MOST_CANCELLED = 4e-7


class _Cancelled(Exception):
    """The closed form cancels too much at one of the epsilons asked."""


def _log_mills(z: float) -> float:
    """log R(z)."""
    if z > -25:
        return math.log(math.sqrt(math.pi / 2) * float(erfcx(z / math.sqrt(2))))
    return 0.5 * z * z + LOG_SQRT_2PI  # R(z) = sqrt(2 pi) e^{z^2/2} (1 - tiny)


def gaussian_delta(mu: float, epsilon: float) -> Bounds:
    """delta(epsilon) of N(mu, 1) against N(0, 1); both directions are equal.

    delta = Phi_c(z) - e^eps Phi_c(z + mu) = phi(z) (R(z) - R(z + mu)), z = eps/mu - mu/2, because
    e^eps phi(z + mu) = phi(z) (Balle & Wang 2018, Thm 8). docs, eq. 16.
    """
    z = epsilon / mu - 0.5 * mu
    if z > -20:  # below, Phi(z) < 1e-88 and delta is 1 to rounding
        first, second = math.exp(_log_mills(z)), math.exp(_log_mills(z + mu))
        gap = first - second
        error = _SPECIAL * (first + second)
        # z itself is rounded: d log phi = z dz, and R changes by at most (1 + |z| R) dz
        shift = 2.0**-52 * (abs(epsilon / mu) + mu)
        relative = shift * (abs(z) + 1) * 2 + 1e-15
        if gap < 1e-3 * first:  # R(z) - R(z+mu) = int (1 - t R(t)) dt, in mu, without cancelling
            gap_low, gap_high = _mills_gap(z, mu)
        else:
            gap_low, gap_high = gap - error - shift * first, gap + error + shift * first
        log_phi = -0.5 * z * z - LOG_SQRT_2PI
        relative += 2.0**-51 * z * z
        if log_phi < -740:
            return Bounds(0.0, 1e-300)
        phi = math.exp(log_phi)
        low, high = phi * gap_low * (1 - relative), phi * gap_high * (1 + relative)
    else:
        low, high = 1 - 1e-15, 1.0
    high = min(high, 1.0)
    return Bounds(min(max(low, 0.0), high), high)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def _mills_gap(z: float, mu: float) -> tuple[float, float]:
    """R(z) - R(z + mu) for small mu, as int over t of g(t) = 1 - t R(t), bounded both ways.

    g is positive and falls, so the integral lies between mu g(z + mu) and mu g(z); the 12-point
    rule is exact to rounding for mu < 1; g loses about z^2 ulps for large z.
    """
    t = z + 0.5 * mu * (1 + _NODES)
    g = 1 - t * math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
    value = 0.5 * mu * float(_WEIGHTS @ g)
    size = 1 + abs(z)
    error = _SPECIAL * mu * (size + 1)
    return max(value - error, 0.0), value + error


def gaussian_epsilon(mu: float, delta: float) -> Bounds:
    """The epsilon of N(mu, 1) against N(0, 1) at ``delta``: bisection on certified bounds."""
    if gaussian_delta(mu, 0.0).upper <= delta:
        return Bounds(0.0, 0.0)
    # delta(eps) <= Phi_c(z) <= e^{-z^2/2}/2, z = eps/mu - mu/2 >= 0, solved for eps: an upper end
    high = 0.5 * mu * mu + mu * math.sqrt(-2 * math.log(delta))
    if delta < LEAST_DELTA:
        return Bounds(0.0, high * (1 + 1e-12))
    high += mu  # so far that the certified upper bound is below delta too
    lower = bisect(lambda e: gaussian_delta(mu, e).lower >= delta, high, 0.0, relative=1e-15)
    upper = bisect(lambda e: gaussian_delta(mu, e).upper <= delta, 0.0, high, relative=1e-15)
    return Bounds(lower, upper)


def single_step_delta(phase: Phase, epsilon: float, *, remove: bool) -> Bounds | None:
    """delta(epsilon) of one mixed step; None where the closed form cancels too much.

    remove: {l > eps} = {x > r}, delta = Q(x > r) - e^eps P(x > r); add: {-l > eps} = {x < r},
    delta = P(x < r) - e^eps Q(x < r) (l increases). Any r gives a lower bound; a root r wrong by
    dr costs at most the second-order term, which is added (docs, eq. 17).
    """
    law = phase.law()
    target = epsilon if remove else -epsilon
    if not remove and phase.shifts[0] == 0 and target <= float(law.w[0]):
        return Bounds(0.0, 0.0)
    r, residue = _just_beyond(law, target, -1.0 if remove else 1.0)
    return _tail_gap(law, r, residue, epsilon, remove)


def _just_beyond(law: ShiftLaw, target: float, way: float) -> tuple[float, float]:
    """(r on the side ``way`` of the root of l = target, a bound of |l(r) - target|).

    So near the root that only rounding matters; on that side the set {x > r} (``way`` -1) or
    {x < r} contains all that a wrong r could have lost (docs, eq. 17).
    """
    r, _ = _root(law, target)
    step = 1e-15 * max(abs(r), 1.0)
    for _ in range(40):
        value = _loss_at(law, r)[0]
        rounding = _loss_rounding(law, r, value)
        if way * (value - target) >= rounding:
            break
        r, step = r + way * step, 2 * step
    return r, abs(value - target) + rounding


def _loss_rounding(law: ShiftLaw, x: float, value: float) -> float:
    """The allowance for l(x): 16 ulps, of l and of sum p_k |e^t - 1| where l is near 0."""
    if abs(value) > 0.3:
        return 2.0**-49 * (1 + abs(value))
    t = law.a * (x - 0.5 * law.a)
    size = float((np.exp(law.w) * np.abs(np.expm1(np.minimum(t, 700.0)))).sum())
    return 2.0**-49 * (abs(value) + size)


def _loss_at(law: ShiftLaw, x: float) -> tuple[float, float]:
    ell, slope, _ = losses(law, np.array([x]), np.zeros(1))
    return float(ell[0, 0].real), float(slope[0])


def _root(law: ShiftLaw, target: float) -> tuple[float, float]:
    """(r with l(r) close to target, |l(r) - target|) for the increasing, convex l."""
    low, high = -1.0, 1.0
    while _loss_at(law, low)[0] > target and low > -1e8:
        low *= 2
    while _loss_at(law, high)[0] < target and high < 1e8:
        high *= 2
    x = high
    value = math.inf
    for _ in range(200):
        value, slope = _loss_at(law, x)
        low, high = (x, high) if value < target else (low, x)
        new = x - (value - target) / slope if slope > 0 else 0.5 * (low + high)
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - x) <= 1e-14 * max(abs(x), 1.0) or not low < high:
            break
        x = new
    return x, abs(value - target)


def single_step_epsilon(phase: Phase, delta: float, *, remove: bool) -> Bounds | None:
    """epsilon(delta) of one mixed step, exactly 0 where delta(0) <= delta; None as above.

    The threshold r is the unknown: eps = l(r), so no root of l is needed until the very end.
    """
    at_zero = single_step_delta(phase, 0.0, remove=remove)
    if at_zero is None or at_zero.upper <= delta:
        return at_zero and Bounds(0.0, 0.0)
    law = phase.law()
    sign = 1.0 if remove else -1.0
    reach = 2 + math.sqrt(2 * math.log(1 / delta))
    near, _ = _root(law, 0.0)
    far = float(law.a[-1]) + reach if remove else -reach

    def is_near(r: float) -> bool:
        """delta falls as r moves away from the root of l = 0."""
        epsilon = max(sign * _loss_at(law, r)[0], 0.0)
        gap = _tail_gap(law, r, 0.0, epsilon, remove)
        return gap is not None and gap.upper >= delta

    r = bisect(is_near, far, near, relative=1e-13, absolute=1e-13)
    epsilon = max(sign * _loss_at(law, r)[0], 0.0)

    def has(at: float, *, above: bool) -> bool:
        """Whether the certified delta at ``at`` is on the asked side of ``delta``."""
        bounds = single_step_delta(phase, max(at, 0.0), remove=remove)
        if bounds is None:
            raise _Cancelled
        return at <= 0 or (bounds.upper <= delta if above else bounds.lower >= delta)

    move = 1e-14 * max(epsilon, 1e-6)
    try:
        lower = outwards(lambda at: has(at, above=False), epsilon, -move, growth=3.0)
        upper = outwards(lambda at: has(at, above=True), epsilon, move, growth=3.0)
    except _Cancelled:
        return None
    if lower is None or upper is None:
        return None
    return Bounds(max(lower, 0.0), upper)


def _tail_gap_small(
    law: ShiftLaw, r: float, residue: float, epsilon: float, remove: bool
) -> Bounds | None:
    """`_tail_gap` with 1 = sum p_k taken out, so that rare participation costs no digits.

    remove: sum_{k>0} p_k (Phi_c(r - a_k) - Phi_c(r)) - (e^eps - 1) Phi_c(r); add alike.
    """
    p, a = np.exp(law.w[1:]), law.a[1:]
    sign = 1.0 if remove else -1.0
    near, shifted = math.exp(log_ndtr(-sign * r)), np.exp(log_ndtr(sign * (a - r)))
    if not near > 0:
        return None
    gain = sign * (shifted - near)
    whole = near if remove else math.exp(float(law.w[0])) * near + math.fsum(p * shifted)
    plus, minus = math.fsum(p * gain), math.expm1(epsilon) * whole
    size = 4e-15 + 4 * 2.0**-53 * float(np.abs(law.w[1:]).min()) + 2.0**-52 * (1 + abs(r)) ** 2
    error = size * (math.fsum(p * (shifted + near)) + minus)
    miss = math.expm1(residue) * max(whole + plus, whole) * 1.01
    value = plus - minus
    if not value > 1e-290 or error + miss > _MOST_CANCELLED * value:
        return None
    return Bounds(value - error, min(value + error + miss, 1.0))


def _tail_gap(
    law: ShiftLaw, r: float, residue: float, epsilon: float, remove: bool
) -> Bounds | None:
    sign = 1.0 if remove else -1.0
    if epsilon < 1.0 and law.a[0] == 0:
        return _tail_gap_small(law, r, residue, epsilon, remove)
    log_q: Floats = law.w + log_ndtr(sign * (law.a - r))
    log_p = float(log_ndtr(-sign * r))
    logs = (log_q, np.array([epsilon + log_p])) if remove else (np.array([log_p]), epsilon + log_q)
    top = float(logs[0].max())
    if top < -690 or float(logs[1].max()) > 690:
        return None
    plus, minus = math.fsum(np.exp(logs[0])), math.fsum(np.exp(logs[1]))
    size = 2e-15 + 4 * 2.0**-53 * (float(np.abs(law.w).min()) + abs(epsilon) + abs(top))
    # log_ndtr(t) is accurate to a few ulps of its value, and t = a - r is rounded: |d log| ~ |t| dt
    size += 2.0**-52 * (1 + abs(r)) * (abs(r) + 1)
    gap, error = plus - minus, size * (plus + minus)
    # between r and the true root |e^{l - eps} - 1| <= e^residue - 1, and the set holds all of it
    miss = math.expm1(residue) * max(plus, minus)
    if not gap > 0 or error + miss > _MOST_CANCELLED * gap:
        return None
    return Bounds(max(gap - error, 0.0), min(gap + error + miss, 1.0))
