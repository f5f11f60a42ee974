r"""One direction of a composition: what is kept of each phase, and its real log-moments.

Legend: *remove* is H(Q^T, P^T) with M(s) = F(1+s); *add* is H(P^T, Q^T) with M(s) = F(-s);
F(b) = E_P[e^{b l}]; K = log M. ``b`` below is 1 + c or -c.
Everything dropped is dropped from the numerator measure (Q for remove, P for add), so
H(kept) <= H(truth) <= H(kept) + T * dropped mass (docs, eq. 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from userdp.accounting.contour.losses import Floats, Law, losses
from userdp.accounting.contour.phases import Phase

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
# On the side where nothing is dropped on purpose, x ends where a normal tail is below 2e-20 of all
# mass; it is the light side of the tilted integrand too, since l falls there.
_LEFT = 9.2
# Beyond the cut the grid goes on for 9 deviations: a line's domain may have to end there (`line`).
_BEYOND = 9.0
# Mass below what a double holds: components under e^-5000 (phases.py; T 1e7 e^-5000 < 1e-2100),
# and whatever else underflows. No upper bound goes below it.
UNDERFLOW = 1e-300
_MOST_POINTS = 60_000
_MOST_TERMS = 4e7  # points times components: about two seconds


class GridTooLarge(Exception):
    """The x-range of a step would need too many points; another method must answer."""


@dataclass(frozen=True, slots=True)
class Step:
    """A phase seen from one direction: its law, a coarse real grid, the cut of its domain."""

    law: Law
    count: int
    x: Floats
    h: float
    ell: Floats
    slope: Floats
    curvature: Floats
    bend: Floats  # bounds l'' half a grid step around each point
    inner: slice  # the part of the grid that must be kept
    dropped: float  # numerator mass dropped, one step, cut at the ends of ``inner`` included


@dataclass(frozen=True, slots=True)
class Side:
    """A direction of the whole composition. Gaussian phases are pooled: mu^2 = sum T shift^2."""

    remove: bool
    steps: tuple[Step, ...]
    mu2: float
    dropped: float  # total numerator mass dropped, all steps

    def b(self, c: float) -> float:
        """The exponent of e^l under P that belongs to the abscissa c."""
        return 1.0 + c if self.remove else -c

    def moments(self, c: float) -> tuple[float, float, float]:
        """(K, K', K'') of the composition at c, from the coarse real grid (not certified)."""
        k0, k1, k2 = 0.5 * self.mu2 * c * (c + 1), 0.5 * self.mu2 * (2 * c + 1), self.mu2
        b = self.b(c)
        for s in self.steps:
            ell, x = s.ell[s.inner], s.x[s.inner]
            g = b * ell - 0.5 * x * x
            top = float(g.max())
            weight = np.exp(g - top)
            total = float(weight.sum())
            mean = float(weight @ ell) / total
            var = float(weight @ (ell - mean) ** 2) / total
            k0 += s.count * (top + math.log(total * s.h) - LOG_SQRT_2PI)
            k1 += s.count * (mean if self.remove else -mean)
            k2 += s.count * var
        return k0, k1, k2


def strip_height(step: Step, domain: slice) -> float:
    """A height Y with Y^2 l'' <= 1.7 < 2 on the domain: l is analytic up to it (docs, eq. 9).

    1.7 leaves room for l'' between the grid points, which `is_sound` asks on the finer grid. Beyond
    3 the Gaussian's own growth e^{Y^2/2} costs more than a higher strip gains.
    """
    bend = float(step.curvature[domain].max())
    return min(3.0, math.sqrt(1.7 / bend)) if bend > 0 else 3.0


def _grid_step(a: Floats) -> float:
    """h_1 of eq. 8: fine enough for a unit Gaussian and for the strip of height pi/gap."""
    gap = float(np.diff(a).max()) if a.size > 1 else 0.0
    return min(0.3, 0.9 / gap) if gap > 0 else 0.3


def _step(phase: Phase, remove: bool, budget: float, reach_c: float | None) -> Step:
    """``budget``: numerator mass that one step may drop (on each of two occasions)."""
    budget = max(budget, UNDERFLOW)  # it is counted as dropped, so more of it is only wider
    a = np.asarray(phase.shifts) / phase.noise_multiplier
    w = np.asarray(phase.log_probabilities)
    p = np.exp(w)
    w = w - math.log(math.fsum(p))
    reach = math.sqrt(2 * math.log(0.5 / budget))  # Phi(-reach) <= budget
    if remove:
        tail = np.cumsum(p[::-1])[::-1]  # tail[k] = sum_{j >= k} p_j
        keep = max(int((tail > budget).sum()), 1)
        missing = float(tail[keep]) if keep < a.size else 0.0
        law = Law(a[:keep], w[:keep], missing)
        head = np.cumsum(p[:keep])
        # nothing of Q lies left of the first component that is not negligible, less a normal tail
        low = float(law.a[int(np.searchsorted(head, 1e-20))]) - _LEFT
        high = float(law.a[-1]) + reach
        # the first of 24 places beyond which Q has less than the budget
        candidates = np.linspace(max(low + 1, high - reach - float(law.a[-1])), high, 24)
        ok = law.log_upper_tail(candidates) <= math.log(budget)
        must = float(candidates[int(ok.argmax())]) if ok.any() else high
        dropped = missing + budget
        ends = (low, must + _BEYOND)
        if reach_c is not None:
            # e^{(1+c)l - x^2/2} has its last peak near (1+c) a_max, and has fallen 9.5 beyond it
            ends = (low, max(must, (1.0 + reach_c) * float(law.a[-1]) + 9.5))
            must = ends[1] + 1.0
    else:
        law = Law(a, w, 0.0)
        must = -reach
        dropped = budget
        ends = (must - _BEYOND, _LEFT)
    h = _grid_step(law.a)
    points = (ends[1] - ends[0]) / h
    if points > _MOST_POINTS or points * law.a.size > _MOST_TERMS:
        raise GridTooLarge
    x = np.arange(ends[0], ends[1] + h, h)
    if remove:
        inner = slice(0, min(int(np.searchsorted(x, must)) + 1, x.size))
    else:
        inner = slice(max(int(np.searchsorted(x, must)) - 1, 0), x.size)
    return _on_grid(law, phase.count, x, h, inner, dropped)


def _on_grid(law: Law, count: int, x: Floats, h: float, inner: slice, dropped: float) -> Step:
    ell, slope, curvature = losses(law, x, np.zeros(1))
    bend = losses(law, x, np.zeros(0), 0.5 * h)[2]  # no heights: only the bound is wanted
    return Step(
        law=law,
        count=count,
        x=x,
        h=h,
        ell=np.ascontiguousarray(ell[0].real),
        slope=slope,
        curvature=curvature,
        bend=bend,
        inner=inner,
        dropped=dropped,
    )


def on_finer_grid(step: Step, h: float) -> Step:
    """The same step, its grid points at most ``h`` apart; every old point is one of the new ones.

    Raises:
        GridTooLarge: the x-range would need too many points.
    """
    parts = math.ceil(step.h / h)
    if parts <= 1:
        return step
    points = (step.x.size - 1) * parts + 1
    if points > _MOST_POINTS or points * step.law.a.size > _MOST_TERMS:
        raise GridTooLarge
    x = step.x[0] + np.arange(points) * (step.h / parts)
    inner = slice(step.inner.start * parts, (step.inner.stop - 1) * parts + 1)
    return _on_grid(step.law, step.count, x, step.h / parts, inner, step.dropped)


def make_side(
    phases: Sequence[Phase], *, remove: bool, mass_budget: float, reach_c: float | None = None
) -> Side:
    """The direction of ``phases``; at most ``mass_budget`` of the numerator's mass is dropped.

    With ``reach_c``, x is not cut where its mass ends but where the tilted integrand of every
    c <= ``reach_c`` has decayed (components of tiny mass are still dropped).
    """
    mu2 = math.fsum(
        ph.count * (ph.shifts[0] / ph.noise_multiplier) ** 2 for ph in phases if ph.is_gaussian
    )
    mixed = [ph for ph in phases if not ph.is_gaussian]
    steps = tuple(
        _step(ph, remove, mass_budget / (2 * len(mixed) * ph.count), reach_c) for ph in mixed
    )
    return Side(remove, steps, mu2, math.fsum(s.count * s.dropped for s in steps) + UNDERFLOW)
