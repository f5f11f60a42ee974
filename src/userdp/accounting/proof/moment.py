r"""One step's moment function F(b + iu) = ∫ φ (1-χ) e^{(b+iu)ℓ} dx, enclosed for all u ≥ 0.

The integral is taken along Im z = Y/2 by the trapezoid rule. ℓ is analytic for 0 ≤ Im z < π/a, and
Im ℓ ≥ 0 there (docs/proof.md, Lemma 2), so that |f_u| ≤ |f_0| on the strip, and the error of the
rule and the nodes left out are bounded by integrals that do not depend on u. Those are bounded by
sums over cells of the real axis: Lemma 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from userdp.accounting.proof.cells import Cells, cut_weight
from userdp.accounting.proof.planning import View
from userdp.accounting.proof.step_law import (
    Ball,
    Ratio,
    Steps,
    continuous_log,
    flint_library,
    float_above,
    log_float,
)

MOST_NODES = 12_000
_CUT_LINES = 1.8  # lines for the tail stay this many 1/κ from the axis: see `CUT_FACTOR`


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
    log_beta: np.ndarray = field(init=False)
    float_theta: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "log_beta", np.array([log_float(one) for one in self.beta]))
        object.__setattr__(self, "float_theta", np.array([float(one) for one in self.theta]))

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
        self.a = steps.unit
        self.cells = Cells(steps, view, b, log_target, real=real)
        self._choose_strip()
        with flint_library().ctx.workprec(bits):
            self._place_nodes()

    # ---------------------------------------------------------------- the strip

    def _choose_strip(self) -> None:
        """Y and the mesh with the fewest nodes (floats); the errors follow in balls."""
        law, cut, cells = self.view.law, self.view.cut, self.cells
        growth = 0.5 + (cut.sharpness**2 if cut else 0.0)
        best: tuple[float, float] | None = None
        widest = float(cells.spreads[cells.inside].max())
        ends = [(log_float(end[0] + end[1]), float_above(end[2])) for end in cells.ends]
        limit = 0.98 * math.pi / law.a
        around = math.sqrt(cells.scale / growth)
        for y in [*np.geomspace(1e-3, 1, 60) * limit, *np.geomspace(0.05, 2, 30) * around]:
            if y > limit:
                continue
            half = law.a * y / 4
            if widest * (4 * math.tan(half) - 4 * half) > 2.5 and not self._real:
                continue
            lean = 4 * -self._float_b * -math.log(math.cos(law.a * y / 2)) if cells.raises else 0.0
            if any(log + lean * spread > self._log_target - 1.5 for log, spread in ends):
                continue
            logs = [*(cells.log_tops + lean * cells.spreads), *(g + lean * s for g, s in ends)]
            most = float(np.max(logs))
            log_bound = most + math.log(float(np.exp(np.array(logs) - most).sum()))
            outside = cells.log_tops[~cells.inside] + lean * cells.spreads[~cells.inside]
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
        nodes = (self.cells.inner[1] - self.cells.inner[0]) / self.mesh
        if nodes > MOST_NODES:
            raise ArithmeticError(f"the trapezoid rule needs {nodes:.0f} nodes")

    def _place_nodes(self) -> None:
        flint = flint_library()
        arb, acb = flint.arb, flint.acb
        low, high = self.cells.inner
        # outwards, so that no node within is missed; one that is bounded and summed does no harm
        first, last = math.floor(low / self.mesh), math.ceil(high / self.mesh)
        self.points = [i * self.mesh for i in range(first, last + 1)]  # exact: few bits
        reach = (low - 2 * self.mesh, high + 2 * self.mesh)
        self.ratio = Ratio(self.steps, self.view.law.window(*reach, self.bits), reach)
        y_top, mesh = arb(self.strip), arb(self.mesh)
        base = self.cells.bound(y_top, inside=True)
        grown = (self.cells.growth * y_top**2).exp()
        if self._real:
            line = arb(0)
            self.error = 2 * grown * base / ((2 * arb.pi() * y_top / mesh).exp() - 1)
            self.error += self.cells.bound(arb(0), self.mesh)
        else:
            line = y_top / 2
            # B(0) + B(Y); both are below their base times the growth at their height
            both = (1 + grown) * base
            self.error = both / ((arb.pi() * y_top / mesh).exp() - 1)
            self.error += (self.cells.growth * line**2).exp() * self.cells.bound(line, self.mesh)
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
            grown = (y**2 / 2 + self.cells.growth * rest**2).exp()
            error = 2 * grown * self._base_at_top / ((2 * arb.pi() * rest / mesh).exp() - 1)
            error += (y**2 / 2).exp() * self.cells.bound(y, self.mesh)
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
            lines.append(TailLine(beta, theta, error.upper()))
        return lines
