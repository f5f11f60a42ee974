r"""One step's moment function F(b + iu) = ∫ φ (1-χ) e^{(b+iu)ℓ} dx, enclosed for all u ≥ 0.

The integral is taken along Im z = Y/2 by the trapezoid rule. ℓ is analytic for 0 ≤ Im z < π/a, and
Im ℓ ≥ 0 there (docs/proof.md, Lemma 2), so that |f_u| ≤ |f_0| on the strip, and the error of the
rule and the nodes left out are bounded by integrals that do not depend on u. Those are bounded by
sums over cells of the real axis: Lemma 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from userdp.accounting.proof.balls import Ball, flint_library, float_above, log_float
from userdp.accounting.proof.cut import cut_weight
from userdp.accounting.proof.law import Ratio, Steps, continuous_log
from userdp.accounting.proof.planning import View

MOST_NODES = 12_000
_MOST_CELLS = 24_000
_CELL_BITS = 64  # cells only bound: they need no accuracy
# Lines for the tail stay this many 1/κ from the axis, where the majorant of |1-χ| has this factor.
_CUT_LINES, _CUT_FACTOR = 1.8, 26.0


def _widening(length: float, width: float, most: float) -> np.ndarray:
    """0 = d_0 < d_1 < … = ``length``: steps of ``width`` that grow where the integrand is dead."""
    distances = [0.0]
    while distances[-1] < length:
        distances.append(distances[-1] + max(width, min(most, 0.015 * distances[-1])))
    distances[-1] = length
    return np.array(distances)


def _powers(base: Ball, count: int) -> list[Ball]:
    """base^0, …, base^{count-1}, each from two of half its order.

    A product of rectangles in the complex plane may be wider by √2 than the factors: along a chain
    of hundreds that eats every bit, along log₂ of them a few.
    """
    powers = [flint_library().acb(1), base]
    for j in range(2, count):
        powers.append(powers[j // 2] * powers[j - j // 2])
    return powers[:count]


def _without_dust(values: list[Ball], least: Ball) -> list[Ball]:
    """Entries below ``least`` in modulus become the square around 0 that holds them.

    The matrix product works on blocks with common exponents, and is several times faster so.
    """
    acb, arb = flint_library().acb, flint_library().arb
    square = acb(arb(0, least), arb(0, least))
    return [square if value.abs_upper() < least else value for value in values]


@dataclass(frozen=True, slots=True)
class TailLine:
    """Σ beta e^{-U theta} + error bounds |F(b + iu)| for every u ≥ U."""

    beta: list[Ball]
    theta: list[Ball]
    error: Ball
    log_beta: np.ndarray
    float_theta: np.ndarray

    def log_bound(self, u: float) -> float:
        """log of the bound at U = ``u`` in floats, to choose among lines."""
        exponents = self.log_beta - u * self.float_theta
        error = float(self.error.log()) if self.error > 0 else -math.inf
        top = max(float(exponents.max()), error)
        return top + math.log(float(np.exp(exponents - top).sum()) + math.exp(error - top))

    def bound(self, least: Ball) -> Ball:
        """The bound at U = ``least``, as a ball whose upper end counts."""
        value = self.error
        for beta, theta in zip(self.beta, self.theta, strict=True):
            value += beta * (-least * theta).exp()
        return value.upper()


class Moment:
    """F(b + iu) of one step: nodes on a line, and what they miss.

    Args:
        steps: the step.
        view: its grid and cut, from the plan (floats).
        b: the real part of the exponent: 1 + c > 1 for *remove*, -c < 0 for *add*; exact.
        log_target: log of the absolute error wanted, a float.
        bits: working precision.
        real: only u = 0 is asked for; then the line is the real axis itself.

    ``error`` bounds |computed - F(b + iu)| for every u ≥ 0.
    """

    def __init__(
        self, steps: Steps, view: View, b: Ball, log_target: float, bits: int, *, real: bool = False
    ) -> None:
        self.steps, self.view, self.b, self.bits = steps, view, b, bits
        self._real = real
        self._log_target = log_target
        self._float_b = float(b.mid())
        flint = flint_library()
        self.a = steps.unit
        self.raises = not b > 0  # negative exponent: |Z| must be bounded from below
        self._spread()
        with flint.ctx.workprec(_CELL_BITS):
            self._cover()
        self._choose_strip()
        with flint.ctx.workprec(bits):
            self._place_nodes()

    # ---------------------------------------------------------------- where (floats)

    def _spread(self) -> None:
        """The part of the axis with nodes, and a wider one with cells."""
        view, b, law = self.view, self._float_b, self.view.law
        log_f = b * view.loss + view.log_weight - np.log(np.gradient(view.x))
        peak = float(log_f.max())
        self._scale = max(peak - self._log_target, 1.0)
        # at the height Y/2 of the nodes the bound has grown by e^{growth Y²/4}, Y² ≈ scale/growth
        margin = 12.0 if self._real else 12.0 + 0.27 * self._scale
        keep = np.flatnonzero(log_f > self._log_target - margin)
        if keep.size < 3 or keep[-1] >= view.x.size - 1 or keep[0] == 0:
            raise ArithmeticError("the integrand does not fade within the range looked at")
        self.inner = (float(view.x[keep[0] - 1]), float(view.x[keep[-1] + 1]))
        _, _, variance = law.at(view.x[keep])
        self._widest = float(variance.max())
        spare = 8.0
        if self.raises:
            curve = 1 - b * law.a**2 * self._widest
            y = min(0.9 * math.pi / law.a, 2 * math.sqrt(self._scale / curve))
            spare += min(-b * self._trials() * -math.log(math.cos(law.a * y / 2)), 3e4)
        goal = self._log_target - spare
        self.outer = (self._left_end(goal), self._right_end(goal))

    def _trials(self) -> int:
        return self.steps.law.most - self.steps.law.least

    def _left_end(self, goal: float) -> float:
        def is_dead(x: float, loss: float) -> bool:
            return self._float_b * loss - 0.5 * x * x < goal

        return self._march(min(self.inner[0] - 0.5, -1.0), -0.5, is_dead)

    def _right_end(self, goal: float) -> float:
        b, law, cut = self._float_b, self.view.law, self.view.cut
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
            if is_dead(x, float(self.view.law.at(np.array([x]))[0][0])):
                return x
            x, step = x + step, step * 1.05
        raise ArithmeticError("no end of the integrand was found")

    # ---------------------------------------------------------------- cells (balls)

    def _cover(self) -> None:
        """Upper bounds of φ·A·Z^b and of W on cells, and of the two infinite ends."""
        arb = flint_library().arb
        (x1, x2), (low, high) = self.outer, self.inner
        width = min(0.04, (high - low) / 200)
        width = max(width, (high - low) / _MOST_CELLS)
        # the cut falls within a cell by e^{slope × width}, which three nats may be
        most = 0.5
        if self.view.cut is not None:
            past = max(x2 - self.view.cut.place, 1.0)
            most = min(most, 1.5 / (self.view.cut.sharpness**2 * past))
        edges = np.concatenate(
            [
                low - _widening(low - x1, width, most)[:0:-1],
                np.linspace(low, high, math.ceil((high - low) / width) + 1)[:-1],
                high + _widening(x2 - high, width, most),
            ]
        )
        x1, x2 = float(edges[0]), float(edges[-1])  # after rounding
        window = self.view.law.window(x1, x2)
        least = self.steps.law.least
        ratio = Ratio(self.steps, (window[0] + least, window[1] + least), (x1, x2))
        at_edge = [ratio.at(float(x)) for x in edges]
        cut = self.view.cut
        kappa = arb(cut.sharpness) if cut else arb(0)
        self._growth = kappa**2 + arb(0.5)
        root = (2 * arb.pi()).sqrt()
        erfc = [cut_weight(cut, arb(float(x))).upper() for x in edges]
        heights = [
            (self.b * at[0] - arb(float(x)) ** 2 / 2).exp().upper()
            for x, at in zip(edges, at_edge, strict=True)
        ]
        self._cells: list[tuple[Ball, Ball, Ball, bool]] = []
        for i in range(edges.size - 1):
            u, v = float(edges[i]), float(edges[i + 1])
            weight = erfc[i]
            if cut:
                gap = max(u - cut.place, cut.place - v, 0.0)
                weight = weight + _CUT_FACTOR * (-((kappa * arb(gap) * (1 - 1e-9)) ** 2)).exp()
            length = arb(v) - arb(u)
            spread = (at_edge[i][2] * (ratio.a * length).exp()).upper()
            spread = spread.min(arb(self._trials()) / 4)
            # Lemma 4: φ Z^b is at most its larger end, raised by what its curvature allows
            bend = 1 - self.b * ratio.a**2 * spread if self.raises else arb(1)
            height = heights[i].max(heights[i + 1]) * (bend * length**2 / 8).exp()
            top = (height * weight / root).upper()
            self._cells.append((top, length, spread, low <= u and v <= high))
        self._ends = (
            self._left_bound(x1, at_edge[0], root),
            self._right_bound(x2, at_edge[-1], root),
        )
        self._log_tops = np.array([log_float(cell[0] * cell[1]) for cell in self._cells])
        self._spreads = np.array([float_above(cell[2]) for cell in self._cells])
        self._inside = np.array([cell[3] for cell in self._cells])

    def _left_bound(
        self, x1: float, at: tuple[Ball, Ball, Ball], root: Ball
    ) -> tuple[Ball, Ball, Ball]:
        """(integral, largest value, W) of the bound on (-∞, x1]."""
        arb = flint_library().arb
        loss, mean, _ = at
        x = arb(x1)
        density = (-(x**2) / 2).exp() / root
        few = (mean - self.steps.law.least).upper().min(arb(self._trials()) / 4)
        if not self.raises:
            # Z rises, A ≤ 1 + 26, φ rises on the left of 0
            factor = (self.b * loss).exp() * (1 + _CUT_FACTOR)
            return (factor * (-x / arb(2).sqrt()).erfc() / 2).upper(), factor * density, few
        # log φ Z^b is concave: its tangent at x1 lies above it
        slope = -x + self.b * self.a * mean
        if not slope > 0:
            raise ArithmeticError("the left end lies on the wrong side of the integrand")
        value = density * (self.b * loss).exp()
        return (value / slope).upper(), value.upper(), few

    def _right_bound(
        self, x2: float, at: tuple[Ball, Ball, Ball], root: Ball
    ) -> tuple[Ball, Ball, Ball]:
        """(integral, largest value, W) of the bound on [x2, ∞)."""
        arb = flint_library().arb
        loss, mean, _ = at
        x = arb(x2)
        density = (-(x**2) / 2).exp() / root
        few = (self.steps.law.most - mean).upper().min(arb(self._trials()) / 4)
        if self.raises:
            factor = (self.b * loss).exp()  # Z rises, so Z^b falls
            return (factor * (x / arb(2).sqrt()).erfc() / 2).upper(), factor * density, few
        cut = self.view.cut
        assert cut is not None
        square, beyond = arb(cut.sharpness) ** 2, x - arb(cut.place)
        fall = (arb(0.5) + _CUT_FACTOR) / root * (-square * beyond**2).exp()
        ways = []
        if 2 * square > self.b - 1:  # φ Z^b = q Z^{b-1} ≤ e^{(b-1)x²/2}/√(2π)
            ways.append(
                (fall * ((self.b - 1) * x**2 / 2).exp(), 2 * square * beyond - (self.b - 1) * x)
            )
        tangent = fall * (self.b * loss - x**2 / 2).exp()  # ℓ' ≤ a·most
        ways.append((tangent, x + 2 * square * beyond - self.b * self.a * self.steps.law.most))
        bounds = [((value / rate).upper(), value.upper()) for value, rate in ways if rate > 0]
        if not bounds or not beyond > 0:
            raise ArithmeticError("the right end lies on the wrong side of the integrand")
        integral, value = min(bounds, key=lambda bound: log_float(bound[0]))
        return integral, value, few

    def _lean(self, y: Ball, spread: Ball) -> Ball:
        """How much |Z(x + iy)|^b may exceed Z(x)^b: cos(ay/2)^{4bW} for b < 0 (Lemma 2), or 1."""
        if not self.raises:
            return flint_library().arb(1)
        return (4 * self.b * spread * (self.a * y / 2).cos().log()).exp()

    def _bound(self, y: Ball, mesh: float = 0, *, inside: bool = False) -> Ball:
        """Bound of ∫ φ A |Z(x + iη)|^b for every 0 ≤ η ≤ y, without the Gaussians' growth.

        With a mesh: of the nodes' sum, mesh times values. ``inside``: also where nodes are summed.
        """
        value = flint_library().arb(0)
        for top, length, spread, has_nodes in self._cells:
            if inside or not has_nodes:
                value += top * (length + mesh) * self._lean(y, spread)
        for integral, most, spread in self._ends:
            value += (integral + mesh * most) * self._lean(y, spread)
        return value.upper()

    # ---------------------------------------------------------------- the strip

    def _choose_strip(self) -> None:
        """Y and the mesh with the fewest nodes (floats); the errors follow in balls."""
        law, cut = self.view.law, self.view.cut
        growth = 0.5 + (cut.sharpness**2 if cut else 0.0)
        best: tuple[float, float] | None = None
        widest = float(self._spreads[self._inside].max())
        ends = [(log_float(end[0] + end[1]), float_above(end[2])) for end in self._ends]
        limit = 0.98 * math.pi / law.a
        around = math.sqrt(self._scale / growth)
        for y in [*np.geomspace(1e-3, 1, 60) * limit, *np.geomspace(0.05, 2, 30) * around]:
            if y > limit:
                continue
            half = law.a * y / 4
            if widest * (4 * math.tan(half) - 4 * half) > 2.5 and not self._real:
                continue
            lean = 4 * -self._float_b * -math.log(math.cos(law.a * y / 2)) if self.raises else 0.0
            if any(log + lean * spread > self._log_target - 1.5 for log, spread in ends):
                continue
            logs = [*(self._log_tops + lean * self._spreads), *(g + lean * s for g, s in ends)]
            most = float(np.max(logs))
            log_bound = most + math.log(float(np.exp(np.array(logs) - most).sum()))
            outside = self._log_tops[~self._inside] + lean * self._spreads[~self._inside]
            if outside.size and float(outside.max()) > self._log_target:
                continue
            need = max(growth * y * y + log_bound - self._log_target + 2.0, 3.0)
            mesh = (2 if self._real else 1) * math.pi * y / need
            if best is None or mesh > best[0]:
                best = (mesh, float(y))
        if best is None:
            raise ArithmeticError("no strip above the axis gives a usable rule")
        mesh, self.strip = best
        mantissa, exponent = math.frexp(mesh)
        self.mesh = math.ldexp(math.floor(mantissa * 4096), exponent - 12)
        nodes = (self.inner[1] - self.inner[0]) / self.mesh
        if nodes > MOST_NODES:
            raise ArithmeticError(f"the trapezoid rule needs {nodes:.0f} nodes")

    def _place_nodes(self) -> None:
        flint = flint_library()
        arb, acb = flint.arb, flint.acb
        low, high = self.inner
        # outwards, so that no node within is missed; one that is bounded and summed does no harm
        first, last = math.floor(low / self.mesh), math.ceil(high / self.mesh)
        self.points = [i * self.mesh for i in range(first, last + 1)]  # exact: few bits
        reach = (low - 2 * self.mesh, high + 2 * self.mesh)
        window = self.view.law.window(*reach, self.bits)
        least = self.steps.law.least
        self.ratio = Ratio(self.steps, (window[0] + least, window[1] + least), reach)
        y_top, mesh = arb(self.strip), arb(self.mesh)
        base = self._bound(y_top, inside=True)
        grown = (self._growth * y_top**2).exp()
        if self._real:
            line = arb(0)
            self.error = 2 * grown * base / ((2 * arb.pi() * y_top / mesh).exp() - 1)
            self.error += self._bound(arb(0), self.mesh)
        else:
            line = y_top / 2
            # B(0) + B(Y); both are below their base times the growth at their height
            both = (1 + grown) * base
            self.error = both / ((arb.pi() * y_top / mesh).exp() - 1)
            self.error += (self._growth * line**2).exp() * self._bound(line, self.mesh)
        self.error = self.error.upper()
        self._base_at_top = base
        scale = mesh / (2 * arb.pi()).sqrt()
        self.losses: list[Ball] = []
        self.weights: list[Ball] = []
        for x in self.points:
            if self._real:
                loss, z = self.ratio.at(x)[0], arb(x)
            else:
                loss, z = continuous_log(self.ratio, x, line)[0], acb(arb(x), line)
            self.losses.append(loss)
            self.weights.append(
                scale * (-(z * z) / 2 + self.b * loss).exp() * cut_weight(self.view.cut, z)
            )

    # ---------------------------------------------------------------- values

    def at_zero(self) -> Ball:
        """F(b), a real ball."""
        arb = flint_library().arb
        value = arb(0)
        for weight in self.weights:
            value += weight if self._real else weight.real
        return value + arb(0, self.error)

    def values(self, step: Ball, count: int) -> list[Ball]:
        """F(b + iju) for u = ``step`` and j = 0, …, ``count`` - 1, by one matrix product."""
        flint = flint_library()
        arb, acb, acb_mat = flint.arb, flint.acb, flint.acb_mat
        columns = max(1, math.isqrt(count))
        rows = -(-count // columns)
        turn = acb(0, 1) * step
        # beside a value of the size of the largest weight this is rounding
        dust = arb(2) ** (-self.bits)
        heavy = dust * max((weight.abs_upper() for weight in self.weights), key=log_float)
        tall: list[list[Ball]] = []
        wide: list[Ball] = []
        for loss, weight in zip(self.losses, self.weights, strict=True):
            wide.extend(_without_dust(_powers((turn * loss).exp(), columns), dust))
            leaps = _powers((turn * columns * loss).exp(), rows)
            tall.append(_without_dust([weight * leap for leap in leaps], heavy))
        nodes = len(self.losses)
        left = acb_mat(rows, nodes, [tall[i][r] for r in range(rows) for i in range(nodes)])
        right = acb_mat(nodes, columns, wide)
        slack = acb(arb(0, self.error), arb(0, self.error))
        return [value + slack for value in (left * right).entries()[:count]]

    def tail_lines(self) -> list[TailLine]:
        r"""Bounds of |F(b + iu)| for all u ≥ U, one for each of several heights y.

        F is the integral over Im z = y, |e^{iuℓ}| = e^{-u Im ℓ} falls in u, and |f_0(x+iy)|
        e^{-U Im ℓ(x+iy)} has a majorant that is analytic in x, so that the same rule with the
        distance Y - y to the next bad line sums it (Lemma 5).
        """
        flint = flint_library()
        arb = flint.arb
        cut, lines = self.view.cut, []
        # beyond Im z = π/2a the angle Im ℓ may fall again: the lines stay below half of that
        safe = min(self.strip, 0.4999 * math.pi / self.view.law.a)
        most = min(self.strip, safe) / 2
        if cut is not None:
            most = min(most, _CUT_LINES / cut.sharpness * (1 - 1e-9))
        mesh = arb(self.mesh)
        scale = mesh / (2 * arb.pi()).sqrt()
        for fraction in (1.0, 0.6, 0.36, 0.2, 0.1, 0.05, 0.02, 0.01, 0.004):
            y = arb(most * fraction)
            rest = arb(safe) - y
            grown = (y**2 / 2 + self._growth * rest**2).exp()
            error = 2 * grown * self._base_at_top / ((2 * arb.pi() * rest / mesh).exp() - 1)
            error += (y**2 / 2).exp() * self._bound(y, self.mesh)
            beta, theta = [], []
            for x in self.points:
                loss, _ = continuous_log(self.ratio, x, y)
                weight = cut_weight(cut, arb(x))
                if cut is not None:
                    kappa = arb(cut.sharpness)
                    height = kappa * y
                    factor = height * (height**2).exp() / arb.pi().sqrt()
                    weight += factor * (-((kappa * (arb(x) - arb(cut.place))) ** 2)).exp()
                value = scale * ((y**2 - arb(x) ** 2) / 2 + self.b * loss.real).exp() * weight
                beta.append(value.upper())
                theta.append(loss.imag.lower())
            lines.append(
                TailLine(
                    beta,
                    theta,
                    error.upper(),
                    np.array([log_float(value) for value in beta]),
                    np.array([float(value) for value in theta]),
                )
            )
        return lines
