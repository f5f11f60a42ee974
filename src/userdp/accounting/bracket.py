r"""`Bracket`, a certified answer; and the price of a mechanism as it runs.

That is the price of the ideal mechanism, and its noise's distance from it.

If M' is within total variation τ of M on every data set and M is (ε, δ')-DP, then M' is
(ε, δ' + (1 + e^ε) τ)-DP: for neighbours D, D' and any set S,

.. math:: P(M'(D) \in S) \le P(M(D) \in S) + τ \le e^ε P(M(D') \in S) + δ' + τ
          \le e^ε (P(M'(D') \in S) + τ) + δ' + τ.

So a claim (ε, δ) of M' is a claim (ε, δ') of M, with a share of δ set aside for (1 + e^ε) τ. A
capped draw is so close to the draw without a cap (`userdp.accounting.mechanisms.Capped`), and the
noise as it is drawn to the Gaussian noise that the accountant prices (`userdp.noise.gaussian`,
which is where its τ comes from). For the noise the shares are powers of two from 2^-50 on, and the
least one that suffices is taken: τ is 1.4e-45 per step, so that 2^-50 is enough up to ε = 42 at
δ = 1e-8 and T = 1e3, and moves no digit that is printed. Beyond ε = 76 the noise's distance is more
than that δ allows, and nothing is claimed.

Every ε that userdp claims for something that ran or will run goes through this module; that of
`userdp account` and `calibrate`, and of the papers' figures, is the ideal mechanism's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, epsilon_up, require_delta, require_epsilon
from userdp.noise.gaussian import distance


@dataclass(frozen=True, kw_only=True, slots=True)
class Bracket:
    """Certified bounds of ε or δ: ``lower <= truth <= upper``.

    Report ``upper``: accounting is pessimistic. ``accountant`` names what produced the numbers.
    ``note`` is empty unless the bracket is wider than usual; then it says why.
    """

    lower: float
    upper: float
    accountant: str
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper:
            raise ValueError(f"not a bracket: lower {self.lower!r}, upper {self.upper!r}")

    @property
    def width(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower


def addition(epsilon: float, distance: float) -> float:
    """(1 + e^ε) τ; infinite where e^ε overflows."""
    if distance == 0:
        return 0.0
    return math.inf if epsilon > 700 else (1 + math.exp(epsilon)) * distance


def suffices(
    share: float, epsilon: float, delta: float, distance: float, *, usable: float = 0.5
) -> bool:
    """Whether this share of ``delta`` pays for the distance at ``epsilon``.

    Args:
        share: at least 2^-50.
        epsilon: >= 0.
        delta: in (0, 1).
        distance: τ, >= 0.
        usable: the part of the share that is counted upon. Both roundings in
            ``delta * (1 - share)`` together may take 2^-52 of delta from it: half of a share is
            safe from 2^-50 on, and 0.999 of it from 2^-40 on.
    """
    return addition(epsilon, distance) <= usable * share * delta


def close_epsilon(
    ideal: Callable[[float], Bracket],
    delta: float,
    *,
    distance: float,
    shares: Sequence[float],
    usable: float = 0.5,
) -> Bracket | None:
    """ε at ``delta`` of what is within ``distance`` of the mechanism whose ε is ``ideal``.

    Guarantee: ``upper`` is an upper bound if that of ``ideal`` is; ``lower`` is 0.

    Args:
        ideal: ε of the mechanism that is close, at a δ in (0, 1).
        delta: in (0, 1).
        distance: τ, >= 0.
        shares: of ``delta`` to set aside, rising, each at least 2^-50; the first that suffices.
        usable: see `suffices`.

    Returns:
        None where no share suffices.
    """
    least = 0.0
    for share in shares:
        # A larger share leaves a larger ε, which asks for at least as much as the last one did.
        if suffices(share, least, delta, distance, usable=usable):
            bracket = ideal(delta * (1 - share))
            if suffices(share, bracket.upper, delta, distance, usable=usable):
                return replace(bracket, lower=0.0)
            least = bracket.upper
    return None


def close_delta(ideal_delta: float, epsilon: float, *, distance: float) -> float:
    """δ at ``epsilon`` of what is within ``distance`` of a mechanism that has ``ideal_delta``.

    Guarantee: an upper bound if ``ideal_delta`` is one; at most 1.
    """
    # A sum that rounds to what it began with is rounded up by hand.
    return min(1.0, math.nextafter(ideal_delta + addition(epsilon, distance), math.inf))


_SHARES = tuple(2.0**-bits for bits in (50, 40, 30, 20, 10, 5, 1))


def implemented_epsilon(
    ideal: Callable[[float], Bracket], delta: float, *, steps: float
) -> Bracket:
    """ε at ``delta`` of a mechanism as it runs.

    Guarantee: ``upper`` is an upper bound if that of ``ideal`` is; infinite where the noise's own
    distance is more than ``delta`` allows.

    Args:
        ideal: the ε of the same mechanism with Gaussian noise, at a δ in (0, 1).
        delta: in (0, 1).
        steps: noisy steps, or their expectation, see `userdp.noise.gaussian.distance`.
    """
    require_delta(delta)
    return close_epsilon(ideal, delta, distance=distance(steps), shares=_SHARES) or Bracket(
        lower=0.0,
        upper=math.inf,
        accountant="none",
        note="the distance of the noise from a Gaussian is more than delta allows",
    )


def implemented_delta(ideal_delta: float, epsilon: float, *, steps: float) -> float:
    """δ at ``epsilon`` of a mechanism as it runs: an upper bound, at most 1.

    Args:
        ideal_delta: an upper bound of δ at ``epsilon`` for the same mechanism with Gaussian noise.
        epsilon: >= 0.
        steps: see `implemented_epsilon`.

    >>> implemented_delta(1e-6, 2.0, steps=1000) == 1e-6 * (1 + 2**-52)
    True
    """
    return close_delta(ideal_delta, require_epsilon(epsilon), distance=distance(steps))


def ideal_delta_for(epsilon: float, delta: float, *, steps: float) -> float:
    """The δ' at which the ideal mechanism must reach ``epsilon``, for (ε, δ) of what runs.

    Guarantee: noise with which the ideal mechanism is (``epsilon``, δ')-DP keeps
    `implemented_epsilon` at ``delta`` within ``epsilon``.

    Raises:
        UseError: no share of ``delta`` is enough for the noise's distance.
    """
    require_delta(delta)
    for share in _SHARES:
        if suffices(share, require_epsilon(epsilon), delta, distance(steps)):
            return delta * (1 - share)
    raise UseError(
        f"delta = {delta_up(delta)} is too small for epsilon = {epsilon_up(epsilon)} over "
        f"{steps:g} steps: the noise as it is drawn is not exactly Gaussian, which adds "
        f"{delta_up(addition(epsilon, distance(steps)), 2)} to delta",
        hint="lower the target epsilon, or raise delta",
    )
