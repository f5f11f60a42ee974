r"""The public functions: certified delta(epsilon), epsilon(delta) of a composition of phases."""

from __future__ import annotations

import math
from collections.abc import Sequence

from userdp.accounting.bracket import Bracket
from userdp.accounting.contour.bounds import Bounds
from userdp.accounting.contour.compose import Curve, epsilon_bounds, gaussian_mu
from userdp.accounting.contour.phases import Phase
from userdp.vocabulary import require_delta, require_epsilon

ACCOUNTANT = "contour"
_WIDTH = 1e-6  # relative; a wider bracket says so
_LEAST_EPSILON = 1e-3  # below it, the width of epsilon is measured absolutely


def _pooled(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """The phases, those of zero effect left out; equal ones are pooled."""
    counts: dict[tuple[tuple[float, ...], tuple[float, ...], float], int] = {}
    for ph in phases:
        if ph.shifts != (0.0,):
            key = (ph.shifts, ph.log_probabilities, ph.noise_multiplier)
            counts[key] = counts.get(key, 0) + ph.count
    return tuple(
        Phase(shifts=s, log_probabilities=w, noise_multiplier=sigma, count=n)
        for (s, w, sigma), n in counts.items()
    )


def _at_least_one(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    if not phases:
        raise ValueError("a composition needs at least one phase, got none")
    return _pooled(phases)


def _bracket(bounds: Bounds, floor: float, what: str) -> Bracket:
    note = ""
    if bounds.upper - bounds.lower > _WIDTH * max(bounds.upper, floor):
        note = (
            f"certified, but wider than {_WIDTH:g} relative: no method narrowed {what} further "
            "for these parameters"
        )
    return Bracket(lower=bounds.lower, upper=bounds.upper, accountant=ACCOUNTANT, note=note)


def delta_bracket(phases: Sequence[Phase], epsilon: float) -> Bracket:
    """Certified bounds of delta(epsilon) for the composition of ``phases``.

    Guarantee: ``lower <= delta(epsilon) <= upper``; float rounding and quadrature are inside the
    bounds, by the stated allowance of docs/accounting.md, Section 6. Where the width exceeds
    1e-6 of ``upper``, ``note`` says so.

    Args:
        phases: at least one; the order does not matter.
        epsilon: finite, >= 0.

    Raises:
        ValueError: for an empty composition or an epsilon out of range.

    Source: Charles et al. 2024, Thm 1 and 3; the method is in docs/accounting.md.

    >>> from userdp.accounting.contour import delta_bracket, phase_of
    >>> from userdp.accounting.laws import Binomial
    >>> step = phase_of(Binomial(trials=8, probability=0.01), noise_multiplier=1.0, count=2000)
    >>> bracket = delta_bracket([step], 34.8906956)
    >>> print(f"{bracket.lower:.7g} {bracket.upper:.7g}")
    1e-06 1e-06
    """
    require_epsilon(epsilon)
    kept = _at_least_one(phases)
    if not kept:
        return Bracket(lower=0.0, upper=0.0, accountant=ACCOUNTANT)
    bounds = Curve(kept, remove=True).delta(epsilon)
    if gaussian_mu(kept) is None:  # both directions of a Gaussian are equal
        # add need not be known better than that it lies below remove's lower bound
        bounds = bounds.join(Curve(kept, remove=False).delta(epsilon, enough=bounds.lower))
    return _bracket(bounds, 0.0, "delta")


def epsilon_bracket(phases: Sequence[Phase], delta: float) -> Bracket:
    """Certified bounds of the least epsilon with delta(epsilon) <= ``delta``.

    Guarantee: ``lower <= epsilon <= upper``; exactly 0 (both) where delta(0) <= ``delta`` is
    certified. Otherwise the width is at most 1e-6 * max(upper, 1e-3), or ``note`` says that it is
    wider.

    Args:
        phases: at least one.
        delta: in (0, 1).

    Raises:
        ValueError: for an empty composition or a delta out of range.

    Source: Charles et al. 2024, Thm 1 and 3; the method is in docs/accounting.md.
    """
    require_delta(delta)
    kept = _at_least_one(phases)
    if not kept:
        return Bracket(lower=0.0, upper=0.0, accountant=ACCOUNTANT)
    bounds = epsilon_bounds(kept, delta, remove=True)
    if gaussian_mu(kept) is None and math.isfinite(bounds.upper):
        # delta falls in epsilon: where add is at most delta at remove's upper end, it asks for less
        add = Curve(kept, remove=False).delta(bounds.upper, enough=delta)
        if add.upper > delta:
            bounds = bounds.join(epsilon_bounds(kept, delta, remove=False))
    return _bracket(bounds, _LEAST_EPSILON, "epsilon")


class OneWay:
    """delta of one direction at many epsilons, any real number; nodes are shared between them.

    Guarantee: ``at(epsilon)`` is (lower, upper) with the truth between, as `delta_bracket`. For
    epsilon < 0, H_{e^eps}(A, B) = 1 - e^eps + e^eps H_{e^-eps}(B, A).

    Args:
        phases: any number; none of them means that A = B.
        remove: H(Q^T, P^T), the data set with the user first; else H(P^T, Q^T).
    """

    def __init__(self, phases: Sequence[Phase], *, remove: bool) -> None:
        kept = _pooled(phases)
        self.is_trivial = not kept
        """Whether nothing is composed: A = B, delta = max(0, 1 - e^eps)."""
        self._forth, self._back = Curve(kept, remove=remove), Curve(kept, remove=not remove)

    def at(self, epsilon: float) -> tuple[float, float]:
        """Certified (lower, upper) of delta at a finite ``epsilon`` of either sign."""
        if self.is_trivial:
            value = max(0.0, -math.expm1(epsilon))
            return value, value
        if epsilon >= 0:
            bounds = self._forth.delta(epsilon)
            return bounds.lower, bounds.upper
        bounds = self._back.delta(-epsilon)
        base, factor = -math.expm1(epsilon), math.exp(epsilon)
        return base + factor * bounds.lower, min(base + factor * bounds.upper, 1.0)
