"""The mixture-of-Gaussians accountant of the library ``dp-accounting`` (Charles et al. A.1).

An independent second opinion, thousands of times slower than our own. Its FFT leaves errors near
1e-14 in δ, so its answers are trusted to ±1e-13 there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from userdp.accounting.bracket import Bracket
from userdp.accounting.contour import Phase
from userdp.errors import FailureError, kind_of
from userdp.extras import library

NAME = "dp-accounting"


def mixture_event(phases: Sequence[Phase]) -> Any:
    """The composition of phases as a ``DpEvent``.

    Source: Charles et al. 2024, Appendix A.1.1.
    """
    dp_event = _library().dp_event
    composed = []
    for phase in phases:
        weights = [math.exp(value) for value in phase.log_probabilities]
        total = math.fsum(weights)
        single = dp_event.MixtureOfGaussiansDpEvent(
            phase.noise_multiplier, list(phase.shifts), [weight / total for weight in weights]
        )
        composed.append(dp_event.SelfComposedDpEvent(single, phase.count))
    return composed[0] if len(composed) == 1 else dp_event.ComposedDpEvent(composed)


def randomised_response_event(pure_epsilon: float) -> Any:
    """Randomised response between two answers that is (``pure_epsilon``, 0)-DP."""
    noise = 2 / (1 + math.exp(pure_epsilon))
    return _library().dp_event.RandomizedResponseDpEvent(noise, 2)


def composed_event(events: Sequence[Any]) -> Any:
    """Several events on the same people."""
    return _library().dp_event.ComposedDpEvent(list(events))


def epsilon(event: Any, delta: float) -> Bracket:
    """Upper bound of ε at δ; the lower bound is 0 (the library gives none).

    Raises:
        FailureError: the library answered NaN, failed, or is not installed.
    """
    accountant = _library().pld.PLDAccountant()
    hint = "price it with --accountant contour, which answers for every mechanism"
    try:
        accountant.compose(event)
        upper = accountant.get_epsilon(delta)
    except (
        Exception
    ) as error:  # its grids have no room for little noise, which it says in many ways
        raise FailureError(
            f"dp-accounting cannot price this mechanism ({kind_of(error)})", hint=hint
        ) from error
    if math.isnan(upper):
        raise FailureError("dp-accounting answered NaN: no bound can be claimed", hint=hint)
    return Bracket(lower=0.0, upper=max(0.0, float(upper)), accountant=NAME)


def _library() -> Any:
    library("dp_accounting.pld", extra="dp-accounting", what="this accountant")
    return library("dp_accounting", extra="dp-accounting", what="this accountant")
