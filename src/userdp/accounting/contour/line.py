r"""The moment function M(c + iu) for all u >= 0 from one grid on a shifted line.

Legend: z = x + iy; f_u(z) = exp((b + iu) l(z) - z^2/2)/sqrt(2 pi); its integral over any line of
the strip 0 <= Im z <= Y equals F(b + iu). On the strip |f_u| <= |f_0| as soon as Im l >= 0 there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from userdp.accounting.contour.losses import (
    Complexes,
    Floats,
    Law,
    is_on_branch,
    losses,
    turns_upwards,
)
from userdp.accounting.contour.side import LOG_SQRT_2PI, Side, Step

_FRACTIONS = np.array([0.0, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 1.0])
EPS = 2.0**-53


class UnsoundStrip(Exception):
    """No strip on which the bounds hold was found; another method must answer."""


@dataclass(frozen=True, slots=True)
class Line:
    """One step's M(c + iu): nodes l(z_m), weights, and what is certified about them.

    ``log_m`` is K(c) of one step; weights are relative to it. ``defect`` bounds
    |M_computed(u) - M(u)| / M(c) for every u >= 0, quadrature and domain cuts included.
    """

    count: int
    ell: Complexes
    weights: Complexes
    log_m: float
    defect: float
    noise: float  # mean of |l| under the tilt: float rounding grows with it
    domain: slice  # of the step's coarse grid
    log_size: Floats  # (m, n): log |f_0| + log h on those lines, relative to M(c)
    imag: Floats  # (m, n): Im l on those lines

    def log_bound(self, u: float) -> float:
        """log of an upper bound of |M(c + iu')| / M(c) for all u' >= u (docs, eq. 12)."""
        e = np.exp(self.log_size - u * self.imag)
        fine = e.sum(axis=1)
        coarse = 2 * e[:, ::2].sum(axis=1)
        other = 2 * e[:, 1::2].sum(axis=1)
        value = float((fine + np.abs(coarse - other) + 1e-15).min()) + self.defect
        return min(math.log(value), 0.0)


def domain_of(step: Step, b: float) -> slice:
    """The part of the step's x-range that carries the tilted mass; at least ``step.inner``."""
    g = b * step.ell - 0.5 * step.x * step.x
    inner = g[step.inner]
    top = float(inner.max())
    good = np.flatnonzero(inner > top - 41.0) + step.inner.start
    if step.inner.start > 0:  # add: the dangerous side is the left
        right = min(int(good[-1]) + 1, step.x.size - 1)
        outer = g[: step.inner.start + 1]
        low = np.flatnonzero(outer < top - 41.0)
        left = int(low[-1]) if low.size else int(outer.argmin())
        if good[0] > step.inner.start:
            left = int(good[0]) - 1
    else:
        left = max(int(good[0]) - 1, 0)
        outer = g[step.inner.stop - 1 :]
        low = np.flatnonzero(outer < top - 41.0)
        right = step.inner.stop - 1 + (int(low[0]) if low.size else int(outer.argmin()))
        if good[-1] < step.inner.stop - 1:
            right = int(good[-1]) + 1
    return slice(left, right + 1)


def strip_height(step: Step, domain: slice) -> float:
    """A height Y with Y^2 l'' <= 1.7 < 2 on the domain: l is analytic up to it (docs, eq. 9)."""
    bend = float(step.curvature[domain].max())
    return min(3.0, math.sqrt(1.7 / bend)) if bend > 0 else 3.0


MOST_POINTS = 20_000  # of a line; beyond, one line costs most of a second
ALIAS_MARGIN = 4.0  # on sums of |f| that stand for integrals, where only their size matters
_LEAST_HEIGHT = 1e-3


def is_sound(
    law: Law,
    x: Floats,
    heights: Floats,
    ell: Complexes,
    slope: Floats,
    bend: Floats,
    height: float,
) -> bool:
    """Whether l is analytic up to Im z = ``height`` and Im l >= 0 on the lines and at the ends.

    Proven for all x between the ends, not only at the grid points (docs, eq. 9-11): ``bend``
    bounds l'' half a step around each point, and |d/dx Im l(x+iy)| <= y l''/(1 - y^2 l''/2).
    It also asks that every value lies on the branch that is continuous from the real axis (docs,
    eq. 9a), which Im l >= 0 does not: a value that has lost a multiple of 2 pi i can be positive.
    """
    if not float(bend.max()) * height * height < 1.95:
        return False
    if not is_on_branch(ell, heights, slope):
        return False
    room = 1 - 0.5 * np.outer(heights**2, bend)
    fall = 0.5 * (x[1] - x[0]) * np.outer(heights, bend) / room
    rounding = 16 * EPS * (np.abs(ell.imag) + np.minimum(1.0, np.abs(ell)))
    if not bool((ell.imag + rounding >= fall).all()):
        return False
    return all(turns_upwards(law, float(end), height) for end in (x[0], x[-1]))


def sums_agree(shifted: Complexes, real: Complexes, exponent: float, defect: float) -> bool:
    """Whether the sums over the shifted line and over the real axis are one number (docs, eq. 10a).

    Both rules compute F(b), which does not depend on the line (Cauchy), and each misses it by at
    most ``defect``; rounding adds at most 8 ulps of (1 + ``exponent``) of each term. A loss on a
    wrong branch turns its terms by e^{2 pi i k b}, so this check sees it without knowing where
    the branch should be.

    Args:
        shifted: the terms f_0(x + iy) h.
        real: the terms f_0(x) h.
        exponent: the largest modulus of their logarithms.
        defect: on the scale of the terms.
    """
    apart = abs(complex(shifted.sum()) - complex(real.sum()))
    size = float(np.abs(shifted).sum()) + float(np.abs(real).sum())
    return apart <= 2 * defect + 8 * EPS * (1 + exponent) * size


def make_line(step: Step, b: float, height: float | None = None) -> Line:
    """The line for the exponent ``b`` (1 + c for remove, -c for add)."""
    inside = domain_of(step, b)
    low, high = float(step.x[inside][0]), float(step.x[inside][-1])
    height = strip_height(step, inside) if height is None else height
    for _ in range(60):
        y = 0.5 * height
        growth = 0.5 * height * height if b > 0 else 0.0
        if b < 0:
            # Re l(x + iY) >= l(x) + log(1 - l'' Y^2 / 2)
            growth += (
                float(
                    _log_sum(
                        b
                        * (
                            step.ell
                            + np.log1p(
                                -0.5 * np.minimum(step.curvature, 1.9 / height**2) * height**2
                            )
                        )
                        - 0.5 * step.x**2,
                        inside,
                    )
                    - _log_sum(b * step.ell - 0.5 * step.x**2, inside)
                )
                + 0.5 * height * height
            )
        if growth < 6.0:
            break
        height *= 0.75
    h = 2 * math.pi * y / (40.0 + growth)
    n = math.ceil((high - low) / h) + 1
    if n > MOST_POINTS:
        raise UnsoundStrip
    h = (high - low) / (n - 1)
    x: Floats = low + h * np.arange(n, dtype=np.float64)
    heights = np.concatenate([[y], height * _FRACTIONS])
    ell, slope, bend = losses(step.law, x, heights, 0.5 * h)
    if not is_sound(step.law, x, heights, ell, slope, bend, height):
        if height < _LEAST_HEIGHT:
            raise UnsoundStrip
        return make_line(step, b, 0.8 * height)
    log_size = (b * ell.real - 0.5 * (x * x)[None, :] + 0.5 * (heights**2)[:, None]) + (
        math.log(h) - LOG_SQRT_2PI
    )
    top = float(log_size[0].max())
    weights = np.exp(b * ell[0] - 0.5 * (x + 1j * y) ** 2 + (math.log(h) - LOG_SQRT_2PI) - top)
    total = float(weights.sum().real)
    log_m = top + math.log(total)
    weights = weights / total
    log_size = log_size - log_m
    # docs, eq. 10: the rule on Im z = y sees the strip 0 <= Im z <= 2y
    size = np.exp(log_size).sum(axis=1)
    strip = float(size[1] + size[-1]) * math.exp(-2 * math.pi * y / h) * ALIAS_MARGIN
    outward = log_size[:, [0, -1]] + np.abs(log_size[:, [0, -1]] - log_size[:, [1, -2]])
    edge = float(np.exp(outward).max(axis=0).sum()) / h * (height + h)
    kept = b * step.ell[step.inner] - 0.5 * step.x[step.inner] ** 2 - log_m
    beyond = (step.x[step.inner] < low) | (step.x[step.inner] > high)
    edge += float(np.exp(kept[beyond]).sum()) * step.h + 1e-18
    exponent = abs(b) * float(np.abs(ell[0]).max()) + 0.5 * float((x * x).max())
    on_axis = np.exp(log_size[1]).astype(np.complex128)
    if not sums_agree(weights, on_axis, exponent, strip + edge):
        raise UnsoundStrip
    noise = float(np.abs(weights) @ np.abs(ell[0]))
    imag = np.maximum(ell.imag[1:], 0.0)
    made = Line(step.count, ell[0], weights, log_m, strip + edge, noise, inside, log_size[1:], imag)
    if made.defect > 1e-15 and height > 0.5:
        # the ends may stand out higher up: where cos(a_k Y) < 0 the far parts of l change sign
        lower = make_line(step, b, 0.75 * height)
        return lower if lower.defect < made.defect else made
    return made


def _log_sum(g: Floats, inside: slice) -> float:
    part = g[inside]
    top = float(part.max())
    return top + math.log(float(np.exp(part - top).sum()))


def make_lines(side: Side, c: float) -> tuple[Line, ...]:
    """A line per mixed phase at the abscissa ``c``."""
    return tuple(make_line(step, side.b(c)) for step in side.steps)
