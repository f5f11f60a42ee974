r"""One step's moment function M(c + iu) for all u >= 0, from one grid on a shifted line.

Legend: z = x + iy; f_u(z) = exp((b + iu) l(z) - z^2/2)/sqrt(2 pi); its integral over any line of
the strip 0 <= Im z <= Y equals F(b + iu). On the strip |f_u| <= |f_0| as soon as Im l >= 0 there.
The trapezoidal rule runs on the middle line Im z = Y/2, which sees the strip on both sides (docs,
eq. 10); ten further lines bound the tail in u (docs, eq. 12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfc, log_ndtr

from userdp.accounting.contour.coarse_grid import LOG_SQRT_2PI, TURN, Side, Split, strip_height
from userdp.accounting.contour.privacy_loss import (
    Complexes,
    Floats,
    ShiftLaw,
    is_on_branch,
    losses,
    turns_upwards,
)

EPS = 2.0**-53


def rounding(weights: Complexes, ell: Complexes, c: float, u: Floats) -> Floats:
    """Allowance for |error| of sum_m w_m (e^{iu l_m} - 1), elementwise in ``u``.

    32 ulps of sum |w| min(2, u |l|) (weights, tables, products, the sum), and 8 ulps of
    (1 + c + u) |l| for the loss itself.
    """
    size, loss = np.abs(weights), np.abs(ell)
    mean = float(size @ loss)
    reach: Floats = np.minimum(2.0 * float(size.sum()), u * mean)
    return EPS * (32.0 * reach + 8.0 * (1.0 + c + u) * mean)


def widened(log_size: Floats, growth: Floats) -> Floats:
    """e^log_size (e^growth - 1): the error of a product of many factors, without loss.

    Infinite where no double holds it: a number that was cut off would be no bound.

    A factor m with error e and power T contributes T log(1 + e/|m|) to ``growth`` (docs, eq. 14).
    """
    with np.errstate(over="ignore"):  # infinity is the right bound: a cut-off number would be none
        out: Floats = np.exp(log_size + growth) * -np.expm1(-growth)
    return out


# Heights of the lines that bound the tail, in parts of Y. The real axis and Im z = Y are among
# them: eq. 10 needs both. A whole line bounds far u best at low heights, where f_0 has hardly
# grown; a split one has hardly anything to bound there.
_FRACTIONS = np.array([0.0, 0.008, 0.016, 0.03, 0.06, 0.12, 0.25, 0.5, 0.75, 1.0])
_SPLIT_FRACTIONS = np.array([0.0, 0.03, 0.06, 0.12, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0])
_MOST_POINTS = 20_000  # of a line; beyond, one line costs most of a second
_ALIAS_MARGIN = 4.0  # on sums of |f| that stand for integrals, where only their size matters
_LEAST_HEIGHT = 1e-3

# h is chosen such that e^{-2 pi y/h} times the growth on the strip is e^-40 < 1e-17 (docs, eq. 10);
# e^-42.5 for a split line, whose parts may be small beside the whole that the error refers to.
_DECAY, _SPLIT_DECAY = 40.0, 42.5
_DEAD = 41.0  # a line ends where f_0 has fallen by e^-41 < 2^-59 of its top


class UnsoundStrip(Exception):
    """No strip on which the bounds hold was found; another method must answer."""


@dataclass(frozen=True, slots=True)
class Part:
    """M(c + iu) of one step, or of the small or the large part of it; relative to e^log_m.

    ``defect`` bounds |M_computed(u) - M(u)| for every u >= 0, quadrature and domain cuts included.
    ``value`` is M_computed at u = 0.
    """

    weights: Complexes  # of the nodes, so that M_computed(u) = sum weights e^{iul}
    value: float
    defect: float
    log_size: Floats  # (lines, n): log |f_0| + log h on the bounding lines
    imag: Floats  # (lines, n): Im l there
    # For rounding of the sums in `log_bound`: absolute for the whole and the small part, since a
    # factor would be raised to the power T; a factor for the large part, which may be tiny.
    spare: float
    margin: float = 1.0

    def log_bound(self, u: float) -> float:
        """log of an upper bound of |M(c + iu')| for all u' >= u (docs, eq. 12).

        The even and the odd half of the grid are two rules with twice the step: their difference
        stands for what the rule itself may miss.
        """
        e = np.exp(self.log_size - u * self.imag)
        halves = np.abs(e[:, ::2].sum(axis=1) - e[:, 1::2].sum(axis=1))
        value = float((e.sum(axis=1) + 2 * halves).min()) * self.margin
        return math.log(value + self.spare + self.defect)


@dataclass(frozen=True, slots=True)
class Line:
    """One step's nodes l(z_m) and what is summed over them. ``log_m`` is K(c) of one step."""

    ell: Complexes
    whole: Part
    log_m: float
    domain: slice  # of the coarse grid


@dataclass(frozen=True, slots=True)
class SplitLine:
    """M_0 (``small``) and M_1 (``large``) of one step from the same nodes (docs, Section 5)."""

    ell: Complexes
    small: Part
    large: Part
    log_m: float


def _domain(side: Side, b: float) -> slice:
    """The part of the x-range that carries the tilted mass; at least ``side.inner``.

    On the side where mass was dropped the tilted integrand may rise again (docs, Section 4), so
    the domain ends at its first fall there, or where it is lowest. That side is the right one, and
    the left one for add, which is seen in a mirror.
    """
    g, inner, size = b * side.ell - 0.5 * side.x * side.x, side.inner, side.x.size
    if not side.remove:
        g, inner = g[::-1], slice(size - inner.stop, size - inner.start)
    dead = float(g[inner].max()) - _DEAD
    good = np.flatnonzero(g[inner] > dead) + inner.start
    left = max(int(good[0]) - 1, 0)
    outer = g[inner.stop - 1 :]
    low = np.flatnonzero(outer < dead)
    right = inner.stop - 1 + (int(low[0]) if low.size else int(outer.argmin()))
    if good[-1] < inner.stop - 1:
        right = int(good[-1]) + 1
    return slice(left, right + 1) if side.remove else slice(size - 1 - right, size - left)


def sums_agree(shifted: Complexes, real: Complexes, exponent: float, defect: float) -> bool:
    """Whether the sums over the shifted line and over the real axis are one number (docs, eq. 10a).

    Both rules compute F(b), which does not depend on the line (Cauchy), and each misses it by at
    most ``defect``; rounding adds at most 8 ulps of (1 + ``exponent``) of each term. A loss on a
    wrong branch turns its terms by e^{2 pi i k b}, so this check sees it without knowing where
    the branch should be. Terms that no double holds agree with nothing.

    Args:
        shifted: the terms f_0(x + iy) h.
        real: the terms f_0(x) h.
        exponent: the largest modulus of their logarithms.
        defect: on the scale of the terms.
    """
    apart = abs(complex(shifted.sum()) - complex(real.sum()))
    size = float(np.abs(shifted).sum()) + float(np.abs(real).sum())
    return math.isfinite(size) and apart <= 2 * defect + 8 * EPS * (1 + exponent) * size


@dataclass(frozen=True, slots=True)
class Grid:
    """Points on the middle line (row 0) and the bounding lines: x + iy and l there.

    The last height is the strip's. ``slope`` is l' on the real axis; ``bend`` bounds l'' half a
    step around each x.
    """

    law: ShiftLaw
    x: Floats
    h: float
    heights: Floats
    ell: Complexes
    slope: Floats
    bend: Floats

    @property
    def z(self) -> Complexes:
        out: Complexes = self.x[None, :] + 1j * self.heights[:, None]
        return out

    def largest_exponent(self, b: float) -> float:
        """The largest modulus of log f_0 on the middle line, about."""
        return abs(b) * float(np.abs(self.ell[0]).max()) + 0.5 * float((self.x**2).max())

    def is_sound(self) -> bool:
        """Whether l is analytic up to the last height and Im l >= 0 on the lines and at the ends.

        Proven for all x between the ends, not only at the grid points (docs, eq. 9-11):
        |d/dx Im l(x+iy)| <= y l''/(1 - y^2 l''/2). It also asks that every value lies on the branch
        that is continuous from the real axis (docs, eq. 9a), which Im l >= 0 does not: a value that
        has lost a multiple of 2 pi i can be positive.
        """
        height, ell = float(self.heights[-1]), self.ell
        if not float(self.bend.max()) * height * height < 1.95:
            return False
        if not is_on_branch(ell, self.heights, self.slope):
            return False
        room = 1 - 0.5 * np.outer(self.heights**2, self.bend)
        fall = 0.5 * (self.x[1] - self.x[0]) * np.outer(self.heights, self.bend) / room
        rounding = 16 * EPS * (np.abs(ell.imag) + np.minimum(1.0, np.abs(ell)))
        if not bool((ell.imag + rounding >= fall).all()):
            return False
        return all(turns_upwards(self.law, float(end), height) for end in (self.x[0], self.x[-1]))


def _grid(
    side: Side, domain: slice, height: float, growth: float, fractions: Floats
) -> Grid | None:
    """Lines up to ``height`` over the domain; None where they are not sound.

    ``growth``: e^-growth is the error of the rule that h is chosen for, before B(0) + B(Y).
    """
    low, high = float(side.x[domain][0]), float(side.x[domain][-1])
    y = 0.5 * height
    n = math.ceil((high - low) / (2 * math.pi * y / growth)) + 1
    if n > _MOST_POINTS:
        raise UnsoundStrip
    h = (high - low) / (n - 1)
    x: Floats = low + h * np.arange(n, dtype=np.float64)
    heights = np.concatenate([[y], height * fractions])
    grid = Grid(side.law, x, h, heights, *losses(side.law, x, heights, 0.5 * h))
    return grid if grid.is_sound() else None


def _defect(log_size: Floats, grid: Grid, *, split: bool) -> float:
    """(10) and the two ends of the x-axis, from log |f_0| + log h on all lines.

    The rule on Im z = Y/2 sees the strip 0 <= Im z <= Y, so its error has e^{-2 pi (Y/2)/h}. An end
    costs at most (Y + h) times the largest |f_0| on its vertical segment. Between the lines it may
    be larger, for which the change to the next point is added; of a part of a ``split`` only a
    rise outwards, since such a part ends steeply where its weight does.
    """
    y, height = float(grid.heights[0]), float(grid.heights[-1])
    size = np.exp(log_size[[1, -1]]).sum()
    strip = float(size) * math.exp(-2 * math.pi * y / grid.h) * _ALIAS_MARGIN
    rise = log_size[:, [0, -1]] - log_size[:, [1, -2]]
    outward = log_size[:, [0, -1]] + (np.maximum(rise, 0.0) if split else np.abs(rise))
    return strip + float(np.exp(outward).max(axis=0).sum()) / grid.h * (height + grid.h)


def _growth(side: Side, inside: slice, b: float, height: float) -> float:
    """log of how much the integral of |f_0| grows up to Im z = ``height``, about.

    By the Gaussian, and for b < 0 also because |e^l| falls: Re l(x+iY) >= l + log(1 - l''Y^2/2).
    """
    growth = 0.5 * height * height
    if b > 0:
        return growth
    bend = np.minimum(side.curvature, 1.9 / height**2) * height**2
    grown = b * (side.ell + np.log1p(-0.5 * bend)) - 0.5 * side.x**2
    return _log_sum(grown[inside]) - _log_sum((b * side.ell - 0.5 * side.x**2)[inside]) + growth


def make_line(side: Side, b: float, height: float | None = None) -> Line:
    """The line for the exponent ``b`` (1 + c for remove, -c for add).

    Raises:
        UnsoundStrip: no strip was found on which the bounds hold.
    """
    inside = _domain(side, b)
    height = strip_height(side, inside) if height is None else height
    for _ in range(60):
        # a growth beyond e^6 would cost more points than the lower strip that avoids it
        growth = _growth(side, inside, b, height)
        if growth < 6.0:
            break
        height *= 0.75
    grid = _grid(side, inside, height, _DECAY + growth, _FRACTIONS)
    if grid is None:
        if height < _LEAST_HEIGHT:
            raise UnsoundStrip
        return make_line(side, b, 0.8 * height)
    x, y = grid.x, grid.heights[0]
    log_scale = math.log(grid.h) - LOG_SQRT_2PI
    log_size = b * grid.ell.real - 0.5 * (x * x)[None, :] + 0.5 * (grid.heights**2)[:, None]
    log_size += log_scale
    top = float(log_size[0].max())
    weights = np.exp(b * grid.ell[0] - 0.5 * (x + 1j * y) ** 2 + log_scale - top)
    total = float(weights.sum().real)
    if not total > 0:  # all of M(c) is lost in rounding: a c far out, of a tiny delta
        raise UnsoundStrip
    log_m = top + math.log(total)
    weights = weights / total
    log_size = log_size - log_m
    # what was kept of the numerator beyond the ends of the line, and the sums' own rounding
    kept = b * side.ell[side.inner] - 0.5 * side.x[side.inner] ** 2 - log_m
    beyond = (side.x[side.inner] < x[0]) | (side.x[side.inner] > x[-1])
    defect = (
        _defect(log_size, grid, split=False) + float(np.exp(kept[beyond]).sum()) * side.h + 1e-18
    )
    on_axis = np.exp(log_size[1]).astype(np.complex128)
    if not sums_agree(weights, on_axis, grid.largest_exponent(b), defect):
        raise UnsoundStrip
    imag = np.maximum(grid.ell.imag[1:], 0.0)
    whole = Part(weights, 1.0, defect, log_size[1:], imag, 1e-15)
    made = Line(grid.ell[0], whole, log_m, inside)
    if defect > 1e-15 and height > 0.5:
        # the ends may stand out higher up: where cos(a_k Y) < 0 the far parts of l change sign
        lower = make_line(side, b, 0.75 * height)
        return lower if lower.whole.defect < defect else made
    return made


def make_split_line(side: Side, split: Split, b: float, *, of_small: bool = False) -> SplitLine:
    """The line for the exponent b = 1 + c, relative to M(c) or (``of_small``) to M_0(c).

    Raises:
        UnsoundStrip: no strip was found on which the bounds hold.
    """
    height = min(TURN / split.rate, strip_height(side, split.domain))
    while True:
        # |chi| grows by e^{(kappa y)^2} (docs, Section 5.2)
        growth = 0.5 * height**2 + (height * split.rate) ** 2
        grid = _grid(side, split.domain, height, _SPLIT_DECAY + growth, _SPLIT_FRACTIONS)
        if grid is not None:
            break
        height *= 0.8
    z = grid.z
    log_f = b * grid.ell - 0.5 * z * z + (math.log(grid.h) - LOG_SQRT_2PI)
    real = log_f[1].real
    if of_small:
        real = real + log_ndtr(-math.sqrt(2) * split.rate * (grid.x - split.place))
    log_m = _log_sum(real)
    imag = np.maximum(grid.ell.imag[1:], 0.0)

    def part(sign: float, spare: float, margin: float) -> Part:
        """The terms with the weight 1 - chi (``sign`` 1) or chi (-1)."""
        terms = f * (0.5 * erfc(sign * split.rate * (z - split.place)))
        log_size = np.log(np.maximum(np.abs(terms), 1e-300))
        defect = _defect(log_size, grid, split=True) + 1e-3 * spare
        if not sums_agree(terms[0], terms[1], grid.largest_exponent(b), defect):
            raise UnsoundStrip
        value = float(terms[0].sum().real)
        return Part(terms[0], value, defect, log_size[1:], imag, spare, margin)

    with np.errstate(over="ignore", invalid="ignore"):  # what is infinite, `sums_agree` refuses
        f = np.exp(log_f - log_m)
        small, large = part(1.0, 1e-15, 1.0), part(-1.0, 0.0, 1.01)
    return SplitLine(grid.ell[0], small, large, log_m)


def _log_sum(g: Floats) -> float:
    top = float(g.max())
    return top + math.log(float(np.exp(g - top).sum()))
