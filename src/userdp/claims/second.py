"""A claim's ε by another accountant than the one that made it.

The contour accountant certifies numerically what the dominating pairs of all steps cost. Rényi DP
gets to an upper bound by other mathematics and other code: moments of one step, multiplied by the
number of steps, and converted (`userdp.accounting.rdp`). It is looser, so the two numbers differ;
but an ε that rests on both is wrong only if both are.
"""

from __future__ import annotations

import math

from userdp.accounting.accountants import Accountant
from userdp.accounting.rdp import has_curve
from userdp.claims.claims import Claim, compose
from userdp.claims.parts import Choice, Part, Query, Steps, times
from userdp.errors import FailureError
from userdp.plans import FixedGrid, Plan
from userdp.vocabulary import Guarantee, delta_up


class _NoSecond(Exception):
    """A part whose price only one accountant here knows."""


def second_opinion(claim: Claim, *, delta: float | None = None) -> Guarantee | None:
    """The same claim by Rényi DP; None where only one accountant here knows its price.

    Guarantee: what ``claim`` covers satisfies the returned guarantee, under the same conditions.
    Nothing of it was computed by the contour accountant. It is at the δ of the claim, part by part.

    It knows the steps of Poisson samplings (ULS and ELS, single runs and all runs of a fixed grid)
    and, beside them, pure queries. It knows neither batches of a fixed size, nor a private
    selection, which is priced by Rényi DP in the first place, nor what was computed elsewhere.

    Args:
        claim: with a finite ε.
        delta: as it was given to `userdp.claims.claim`.

    Raises:
        FailureError: the two contradict each other: this upper bound of the ε of some steps is
            smaller than the first accountant's certified *lower* bound of the same ε.
    """
    if not claim.finite or not any(part.has_delta for part in claim.parts):
        return None
    try:
        second = compose(claim.lineage, delta=delta, price=_price)
    except _NoSecond:
        return None
    assert second.delta == claim.guarantee.delta, "asked at another delta than the claim's"
    return second if math.isfinite(second.epsilon) else None


def _price(part: Part, delta: float | None) -> Guarantee:
    """As `Part.guarantee`, by the second accountant."""
    match part:
        case Query():
            return part.guarantee()  # ε is a constant of the mechanism: nothing is computed
        case Steps():
            share = None if delta is None else delta / part.charges
            return times(_steps(part.plan, share), part.charges)
        case Choice(tuning=FixedGrid() as tuning):
            return tuning.guarantee(delta=delta, price=_steps)
    raise _NoSecond


def _steps(plan: Plan, delta: float | None) -> Guarantee:
    """`Plan.guarantee` of all steps by Rényi DP."""
    if not plan.sampling.covered or not has_curve(plan.mechanism):
        raise _NoSecond
    second = plan.guarantee(delta=delta, accountant=Accountant.RDP)
    if plan.accountant is Accountant.CONTOUR and math.isfinite(second.epsilon):
        _refuse_contradiction(plan, second)
    return second


def _refuse_contradiction(plan: Plan, second: Guarantee) -> None:
    # The noise as it is drawn only costs more than the ideal noise, whose lower bound this is.
    first = plan.mechanism.epsilon(second.delta)
    if second.epsilon < first.lower:
        raise FailureError(
            f"two accountants contradict each other about {plan.steps} steps at delta = "
            f"{delta_up(second.delta)}: epsilon is at least {first.lower!r} by {first.accountant}, "
            f"and at most {second.epsilon!r} by {second.accountant}. One of them is wrong, so no "
            "epsilon can be relied on",
            hint="report it with the plan: every number of it is public",
        )
