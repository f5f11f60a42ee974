r"""Bounds of one step's integrand on cells of the real axis, and on the two ends beyond them.

On a cell φ Z^b is at most its larger end, raised by what its curvature allows (docs/proof.md,
Lemma 4). `Cells.bound` sums this up to a bound of the integral on any line above the axis, which
the trapezoid rule of `userdp.accounting.proof.moment` takes its errors from.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from userdp.accounting.proof.planning import Cut, View, felt
from userdp.accounting.proof.step_law import (
    Ball,
    Ratio,
    Steps,
    expectation,
    flint_library,
    float_above,
    log_float,
)


def cut_weight(cut: Cut | None, z: Ball) -> Ball:
    """1 - χ(z) = ½ erfc(κ(z - place)); 1 without a cut."""
    flint = flint_library()
    if cut is None:
        return flint.arb(1)
    return (flint.arb(cut.sharpness) * (z - flint.arb(cut.place))).erfc() / 2


def dropped_mass(steps: Steps, view: View, bits: int) -> Ball:
    """An upper bound of ∫ χ dQ = Σ q_k Pr[N(a_k, 1 + 1/(2κ²)) ≥ place], one step's cut mass."""
    flint = flint_library()
    arb, cut = flint.arb, view.cut
    if cut is None:
        return arb(0)
    with flint.ctx.workprec(bits):
        width = (2 + 1 / arb(cut.sharpness) ** 2).sqrt()

        def beyond(k: int) -> Ball:
            return ((arb(cut.place) - steps.unit * k) / width).erfc() / 2

        return expectation(steps.law, felt(view.law.log_q, 1500.0), beyond).upper()


# Where |1-χ| is taken off the axis, 1.8/κ from it at most, its majorant has this factor.
CUT_FACTOR = 26.0
_MOST_CELLS = 24_000
_CELL_BITS = 64  # cells only bound: they need no accuracy


def _widening(length: float, width: float, most: float) -> np.ndarray:
    """0 = d_0 < d_1 < … = ``length``: steps of ``width`` that grow where the integrand is dead."""
    distances = [0.0]
    while distances[-1] < length:
        distances.append(distances[-1] + max(width, min(most, 0.015 * distances[-1])))
    distances[-1] = length
    return np.array(distances)


class Cells:
    """Upper bounds of φ·A·|Z|^b: on cells that cover where it counts, and on the two ends.

    Args:
        steps: the step.
        view: its grid and cut, from the plan (floats).
        b: the real part of the exponent; exact.
        log_target: log of the absolute error that the moment may have, a float.
        real: the nodes lie on the real axis itself.

    ``inner`` is the part of the axis that needs nodes; ``inside`` tells which cells lie in it.
    ``scale`` is how far log φ·A·Z^b rises above ``log_target``, ``growth`` the γ of e^{γη²}, which
    the Gaussians grow by at the height η. ``ends`` are (integral, largest value, W) on either side.
    """

    def __init__(self, steps: Steps, view: View, b: Ball, log_target: float, *, real: bool) -> None:
        self._steps, self._view, self._b = steps, view, b
        self._real = real
        self._log_target = log_target
        self._float_b = float(b.mid())
        self._a = steps.unit
        self.raises = not b > 0  # negative exponent: |Z| must be bounded from below
        self._spread()
        with flint_library().ctx.workprec(_CELL_BITS):
            self._cover()

    # ---------------------------------------------------------------- where (floats)

    def _spread(self) -> None:
        """The part of the axis with nodes, and a wider one with cells."""
        view, b, law = self._view, self._float_b, self._view.law
        log_f = b * view.loss + view.log_weight - np.log(np.gradient(view.x))
        peak = float(log_f.max())
        self.scale = max(peak - self._log_target, 1.0)
        # at the height Y/2 of the nodes the bound has grown by e^{growth Y²/4}, Y² ≈ scale/growth
        margin = 12.0 if self._real else 12.0 + 0.27 * self.scale
        keep = np.flatnonzero(log_f > self._log_target - margin)
        if keep.size < 3 or keep[-1] >= view.x.size - 1 or keep[0] == 0:
            raise ArithmeticError("the integrand does not fade within the range looked at")
        self.inner = (float(view.x[keep[0] - 1]), float(view.x[keep[-1] + 1]))
        _, _, variance = law.at(view.x[keep])
        widest = float(variance.max())
        spare = 8.0
        if self.raises:
            curve = 1 - b * law.a**2 * widest
            y = min(0.9 * math.pi / law.a, 2 * math.sqrt(self.scale / curve))
            spare += min(-b * self._steps.law.most * -math.log(math.cos(law.a * y / 2)), 3e4)
        goal = self._log_target - spare
        self._outer = (self._left_end(goal), self._right_end(goal))

    def _left_end(self, goal: float) -> float:
        def is_dead(x: float, loss: float) -> bool:
            return self._float_b * loss - 0.5 * x * x < goal

        return self._march(min(self.inner[0] - 0.5, -1.0), -0.5, is_dead)

    def _right_end(self, goal: float) -> float:
        b, law, cut = self._float_b, self._view.law, self._view.cut
        start = max(self.inner[1] + 0.5, 1.0)
        if cut is None:
            return self._march(start, 0.5, lambda x, loss: b * loss - 0.5 * x * x < goal)

        def is_dead(x: float, loss: float) -> bool:
            """By one of the two bounds of `_right_bound`, which must fall there."""
            square, beyond = cut.sharpness**2, x - cut.place
            fall = square * beyond**2
            quadratic = 0.5 * (b - 1) * x * x - fall + 4
            tangent = b * loss - 0.5 * x * x - fall + 4
            steepest = law.a * float(law.k[-1])
            return (quadratic < goal and (b - 1) * x < 2 * square * beyond - 0.5) or (
                tangent < goal and b * steepest < x + 2 * square * beyond - 0.5
            )

        return self._march(max(start, cut.place + 0.5), 0.5, is_dead)

    def _march(self, x: float, step: float, is_dead: Callable[[float, float], bool]) -> float:
        """From ``x`` outwards to where the integrand is dead, given x and ℓ(x)."""
        for _ in range(400):
            if is_dead(x, float(self._view.law.at(np.array([x]))[0][0])):
                return x
            x, step = x + step, step * 1.05
        raise ArithmeticError("no end of the integrand was found")

    # ---------------------------------------------------------------- cells (balls)

    def _cover(self) -> None:
        """Upper bounds of φ·A·Z^b and of W on cells, and of the two infinite ends."""
        arb = flint_library().arb
        (x1, x2), (low, high) = self._outer, self.inner
        width = min(0.04, (high - low) / 200)
        width = max(width, (high - low) / _MOST_CELLS)
        # the cut falls within a cell by e^{slope × width}, which three nats may be
        most = 0.5
        if self._view.cut is not None:
            past = max(x2 - self._view.cut.place, 1.0)
            most = min(most, 1.5 / (self._view.cut.sharpness**2 * past))
        edges = np.concatenate(
            [
                low - _widening(low - x1, width, most)[:0:-1],
                np.linspace(low, high, math.ceil((high - low) / width) + 1)[:-1],
                high + _widening(x2 - high, width, most),
            ]
        )
        x1, x2 = float(edges[0]), float(edges[-1])  # after rounding
        ratio = Ratio(self._steps, self._view.law.window(x1, x2), (x1, x2))
        at_edge = [ratio.at(float(x)) for x in edges]
        cut = self._view.cut
        kappa = arb(cut.sharpness) if cut else arb(0)
        self.growth = kappa**2 + arb(0.5)
        root = (2 * arb.pi()).sqrt()
        erfc = [cut_weight(cut, arb(float(x))).upper() for x in edges]
        heights = [
            (self._b * at[0] - arb(float(x)) ** 2 / 2).exp().upper()
            for x, at in zip(edges, at_edge, strict=True)
        ]
        self._cells: list[tuple[Ball, Ball, Ball, bool]] = []
        for i in range(edges.size - 1):
            u, v = float(edges[i]), float(edges[i + 1])
            weight = erfc[i]
            if cut:
                gap = max(u - cut.place, cut.place - v, 0.0)
                weight = weight + CUT_FACTOR * (-((kappa * arb(gap) * (1 - 1e-9)) ** 2)).exp()
            length = arb(v) - arb(u)
            spread = (at_edge[i][2] * (ratio.a * length).exp()).upper()
            spread = spread.min(arb(self._steps.law.most) / 4)
            # Lemma 4: φ Z^b is at most its larger end, raised by what its curvature allows
            bend = 1 - self._b * ratio.a**2 * spread if self.raises else arb(1)
            height = heights[i].max(heights[i + 1]) * (bend * length**2 / 8).exp()
            top = (height * weight / root).upper()
            self._cells.append((top, length, spread, low <= u and v <= high))
        self.ends = (
            self._left_bound(x1, at_edge[0], root),
            self._right_bound(x2, at_edge[-1], root),
        )
        self.log_tops = np.array([log_float(cell[0] * cell[1]) for cell in self._cells])
        self.spreads = np.array([float_above(cell[2]) for cell in self._cells])
        self.inside = np.array([cell[3] for cell in self._cells])

    def _left_bound(
        self, x1: float, at: tuple[Ball, Ball, Ball], root: Ball
    ) -> tuple[Ball, Ball, Ball]:
        """(integral, largest value, W) of the bound on (-∞, x1]."""
        arb = flint_library().arb
        loss, mean, _ = at
        x = arb(x1)
        density = (-(x**2) / 2).exp() / root
        few = mean.upper().min(arb(self._steps.law.most) / 4)
        if not self.raises:
            # Z rises, A ≤ 1 + 26, φ rises on the left of 0
            factor = (self._b * loss).exp() * (1 + CUT_FACTOR)
            return (factor * (-x / arb(2).sqrt()).erfc() / 2).upper(), factor * density, few
        # log φ Z^b is concave: its tangent at x1 lies above it
        slope = -x + self._b * self._a * mean
        if not slope > 0:
            raise ArithmeticError("the left end lies on the wrong side of the integrand")
        value = density * (self._b * loss).exp()
        return (value / slope).upper(), value.upper(), few

    def _right_bound(
        self, x2: float, at: tuple[Ball, Ball, Ball], root: Ball
    ) -> tuple[Ball, Ball, Ball]:
        """(integral, largest value, W) of the bound on [x2, ∞)."""
        arb = flint_library().arb
        loss, mean, _ = at
        x = arb(x2)
        density = (-(x**2) / 2).exp() / root
        few = (self._steps.law.most - mean).upper().min(arb(self._steps.law.most) / 4)
        if self.raises:
            factor = (self._b * loss).exp()  # Z rises, so Z^b falls
            return (factor * (x / arb(2).sqrt()).erfc() / 2).upper(), factor * density, few
        cut = self._view.cut
        assert cut is not None
        square, beyond = arb(cut.sharpness) ** 2, x - arb(cut.place)
        fall = (arb(0.5) + CUT_FACTOR) / root * (-square * beyond**2).exp()
        ways = []
        if 2 * square > self._b - 1:  # φ Z^b = q Z^{b-1} ≤ e^{(b-1)x²/2}/√(2π)
            ways.append(
                (fall * ((self._b - 1) * x**2 / 2).exp(), 2 * square * beyond - (self._b - 1) * x)
            )
        tangent = fall * (self._b * loss - x**2 / 2).exp()  # ℓ' ≤ a·most
        ways.append((tangent, x + 2 * square * beyond - self._b * self._a * self._steps.law.most))
        bounds = [((value / rate).upper(), value.upper()) for value, rate in ways if rate > 0]
        if not bounds or not beyond > 0:
            raise ArithmeticError("the right end lies on the wrong side of the integrand")
        integral, value = min(bounds, key=lambda bound: log_float(bound[0]))
        return integral, value, few

    def _lean(self, y: Ball, spread: Ball) -> Ball:
        """How much |Z(x + iy)|^b may exceed Z(x)^b: cos(ay/2)^{4bW} for b < 0 (Lemma 2), or 1."""
        if not self.raises:
            return flint_library().arb(1)
        return (4 * self._b * spread * (self._a * y / 2).cos().log()).exp()

    def bound(self, y: Ball, mesh: float = 0, *, inside: bool = False) -> Ball:
        """Bound of ∫ φ A |Z(x + iη)|^b for every 0 ≤ η ≤ y, without the Gaussians' growth.

        With a mesh: of the nodes' sum, mesh times values. ``inside``: also where nodes are summed.
        """
        value = flint_library().arb(0)
        for top, length, spread, has_nodes in self._cells:
            if inside or not has_nodes:
                value += top * (length + mesh) * self._lean(y, spread)
        for integral, most, spread in self.ends:
            value += (integral + mesh * most) * self._lean(y, spread)
        return value.upper()
