r"""Different mechanisms on the same people: phases, silos, runs and queries put together.

The Gaussian parts are one composition of phases. The pure queries are randomised response, whose
outcomes o have loss L_o = ± ε₁ ± ε₂ …, and with R₁, R₀ their probabilities on the two data sets,

.. math:: H_{e^ε}(Q ⊗ R_1, P ⊗ R_0) = \sum_o R_1(o) \, H_{e^{ε - L_o}}(Q, P),

since on outcome o the integrand is (R_1(o) Q - e^ε R_0(o) P)₊ = R_1(o) (Q - e^{ε - L_o} P)₊. For
ε < 0, H_{e^ε}(Q, P) = 1 - e^ε + e^ε H_{e^{-ε}}(P, Q).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.accounting.bracket import Bracket
from userdp.accounting.contour import (
    ACCOUNTANT,
    OneWay,
    Phase,
    delta_bracket,
    epsilon_bracket,
)
from userdp.accounting.mechanisms.base import Mechanism
from userdp.accounting.mechanisms.mixture import Mixture
from userdp.accounting.mechanisms.pure import PureQuery
from userdp.accounting.roots import narrow
from userdp.errors import UseError
from userdp.vocabulary import Adjacency, require_delta, require_epsilon

_MOST_ATOMS, _FINE_ATOMS = 1024, 1 << 14  # beside Gaussian parts; while outcomes are combined
_TOLERANCE = 2e-8
_UP, _DOWN = 1 + 1e-12, 1 - 1e-12  # sums of non-negative terms, rounded outwards

Part = Mixture | PureQuery
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Composition(Mechanism):
    """Mechanisms that the same people take part in, in any order, each possibly adaptive.

    Guarantee: δ(ε) of the product of the parts' dominating pairs bounds the composition, provided
    that all parameters of all parts are fixed in advance (Zhu, Dong & Wang 2022, Theorem 10). A
    part whose parameters depend on an earlier part's output must not be put in here: it needs a
    pre-fixed (ε_i, δ_i) of its own, added by basic composition.

    Args:
        parts: mixtures of Gaussians and `PureQuery`; at least one, all of one adjacency.

    Raises:
        UseError: no parts, or parts of different adjacencies.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise UseError("a composition needs at least one part, got none")
        adjacencies = {part.adjacency for part in self.parts}
        if len(adjacencies) > 1:
            raise UseError(
                f"parts of different adjacencies ({', '.join(sorted(adjacencies))}) were put "
                "together: their sum bounds neither",
                hint="account for all parts under one adjacency",
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.parts[0].adjacency

    def delta(self, epsilon: float) -> Bracket:
        require_epsilon(epsilon)
        phases, pure = self._split()
        if not pure:
            return delta_bracket(phases, epsilon)
        return _Product(phases, pure).delta(epsilon)

    def epsilon(self, delta: float) -> Bracket:
        require_delta(delta)
        phases, pure = self._split()
        if not pure:
            return epsilon_bracket(phases, delta)
        product = _Product(phases, pure)
        if product.delta(0.0).upper <= delta:
            return Bracket(lower=0.0, upper=0.0, accountant=ACCOUNTANT)
        # Basic composition bounds the answer from above, the Gaussian parts alone from below.
        lower, upper = 0.0, math.fsum(pure)
        if phases:
            gauss = epsilon_bracket(phases, delta)
            lower, upper = gauss.lower, gauss.upper + upper
        return _invert(product.delta, delta, lower, upper)

    def dp_event(self) -> Any:
        from userdp.accounting import dp_accounting_backend

        return dp_accounting_backend.composed_event([part.dp_event() for part in self.parts])

    def _split(self) -> tuple[tuple[Phase, ...], list[float]]:
        phases: list[Phase] = []
        pure: list[float] = []
        for part in self.parts:
            if isinstance(part, PureQuery):
                pure.append(part.pure_epsilon)
            else:
                phases.extend(part.phases())
        return tuple(phases), pure


def _invert(
    delta_at: Callable[[float], Bracket], delta: float, lower: float, upper: float
) -> Bracket:
    """Certified bounds of the ε in [lower, upper] at which a falling ``delta_at`` passes ``delta``.

    Each end is certified by itself: at the upper one δ was seen to be at most ``delta``, at the
    lower one to be above it. The search ends where the bracket of δ holds ``delta``.
    """

    def excess(epsilon: float) -> float | None:
        bracket = delta_at(epsilon)
        if bracket.lower <= delta < bracket.upper:
            return None
        return math.log(max(bracket.upper, 1e-300) / delta)

    ends = narrow(excess, lower, upper, relative=_TOLERANCE, absolute=_TOLERANCE * 1e-3)
    return Bracket(lower=ends[0], upper=ends[1], accountant=ACCOUNTANT)


_Losses = tuple[Floats, Floats]
"""Outcomes of all pure queries: their losses, and their probabilities R₁ on the first data set."""


def _coarser(loss: Floats, weight: Floats, most: int, *, upwards: bool) -> _Losses:
    """At most about ``most`` outcomes, each loss rounded one way."""
    if len(loss) <= most:
        return loss, weight
    step = (loss[-1] - loss[0]) / most
    cell = np.ceil(loss / step) if upwards else np.floor(loss / step)
    return _pooled(cell * step, weight)


def _atoms(pure: Sequence[float], *, upwards: bool, most: int) -> _Losses:
    """The outcomes of the queries; where they are too many, losses are rounded one way.

    Rounding every loss up moves mass to larger losses and so can only raise δ; down, lower it.
    """
    loss, weight = np.zeros(1), np.ones(1)
    for value in pure:
        likely = 1 / (1 + math.exp(-value))
        loss = np.concatenate([loss + value, loss - value])
        weight = np.concatenate([weight * likely, weight * (1 - likely)])
        loss, weight = _pooled(np.round(loss, 12), weight)
        loss, weight = _coarser(loss, weight, _FINE_ATOMS, upwards=upwards)
    loss, weight = _coarser(loss, weight, most, upwards=upwards)
    nudge = 1e-11 * len(pure)  # np.round moved each loss by at most 5e-13 per query
    return loss + (nudge if upwards else -nudge), weight


def _pooled(loss: Floats, weight: Floats) -> _Losses:
    """Equal losses once, with their weights added."""
    distinct, index = np.unique(loss, return_inverse=True)
    pooled = np.zeros(len(distinct))
    np.add.at(pooled, index, weight)
    return distinct, pooled


class _Product:
    """Gaussian parts and pure queries together; what one ε costs is kept for the next."""

    def __init__(self, phases: Sequence[Phase], pure: Sequence[float]) -> None:
        self._ways = [OneWay(phases, remove=remove) for remove in (True, False)]
        most = _MOST_ATOMS if phases else _FINE_ATOMS
        self._low = _atoms(pure, upwards=False, most=most)
        self._high = _atoms(pure, upwards=True, most=most)

    def delta(self, epsilon: float) -> Bracket:
        """Certified δ(ε) of the product, the worse of both directions."""
        lower = max(_mean(way, self._low, epsilon)[0] for way in self._ways)
        upper = max(_mean(way, self._high, epsilon)[1] for way in self._ways)
        return Bracket(
            lower=min(lower * _DOWN, upper), upper=min(1.0, upper * _UP), accountant=ACCOUNTANT
        )


def _mean(way: OneWay, losses: _Losses, epsilon: float) -> tuple[float, float]:
    """Lower and upper bound of Σ_o R₁(o) δ(ε - L_o)."""
    loss, weight = losses
    if way.is_trivial:  # at once: there may be thousands of outcomes
        value = float(weight @ np.maximum(-np.expm1(epsilon - loss), 0.0))
        return value, value
    bounds = np.array([way.at(epsilon - one) for one in loss])
    return math.fsum(weight * bounds[:, 0]), math.fsum(weight * bounds[:, 1])
