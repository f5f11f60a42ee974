r"""The price of what is close to a mechanism whose price is known, in total variation.

If M' is within total variation τ of M on every data set and M is (ε, δ')-DP, then M' is
(ε, δ' + (1 + e^ε) τ)-DP: for neighbours D, D' and any set S,

.. math:: P(M'(D) \in S) \le P(M(D) \in S) + τ \le e^ε P(M(D') \in S) + δ' + τ
          \le e^ε (P(M'(D') \in S) + τ) + δ' + τ.

So a claim (ε, δ) of M' is a claim (ε, δ') of M, with a share of δ set aside for (1 + e^ε) τ. The
noise as it is drawn is so close to a Gaussian (`userdp.accounting.implemented`), and a capped draw
to the draw without a cap (`userdp.accounting.mechanisms.capped`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from userdp.accounting.bracket import Bracket


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
