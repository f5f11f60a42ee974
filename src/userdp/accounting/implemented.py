r"""The price of a mechanism as it runs: that of the ideal one, and its noise's distance from it.

The accountant prices Gaussian noise. What runs draws noise within total variation τ of it on every
data set (`userdp.noise.gaussian`, which is where τ comes from), and pays for that with a share of
δ (`userdp.accounting.closeness`). The shares are powers of two from 2^-50 on, and the least one
that suffices is taken: τ is 1.4e-45 per step, so that 2^-50 is enough up to ε = 42 at δ = 1e-8 and
T = 1e3, and moves no digit that is printed. Beyond ε = 76 the noise's distance is more than that δ
allows, and nothing is claimed.

Every ε that userdp claims for something that ran or will run goes through this module; that of
`userdp account` and `calibrate`, and of the papers' figures, is the ideal mechanism's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from userdp.accounting.bracket import Bracket
from userdp.accounting.closeness import addition, close_delta, close_epsilon, suffices
from userdp.errors import UseError
from userdp.noise.gaussian import distance
from userdp.vocabulary import delta_up, epsilon_up, require_delta, require_epsilon

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
