"""An answer of the contour accountant, proven or contradicted by ball arithmetic.

The proof encloses δ at the two ends of the accountant's bracket of ε. It proves numbers for the
dominating pair that the mechanism names; that this pair dominates is the cited theorems' part.
"""

from __future__ import annotations

from typing import Any

from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms import Capped, Mixture, NoisySteps
from userdp.accounting.proof import Enclosure, Steps, enclose_delta
from userdp.core.errors import FailureError, UseError

SCOPE = "numbers of the dominating pair, not that it dominates the training run (docs/proof.md)"


def steps_of(mechanism: NoisySteps) -> Steps:
    """The law of a mechanism's dominating pair, from its own parameters.

    Raises:
        UseError: the mechanism is not dominated by a mixture of Gaussians on one grid.
    """
    if not isinstance(mechanism, Mixture):
        raise UseError(
            f"there is no proof for {type(mechanism).__name__}: its price is not that of "
            "one mixture of Gaussians",
            hint="leave --proof out",
        )
    return Steps(
        law=mechanism.law,
        scale=mechanism.scale,
        noise_multiplier=mechanism.noise_multiplier,
        count=mechanism.steps,
    )


def prove_epsilon(mechanism: NoisySteps, delta: float, bracket: Bracket) -> dict[str, Any]:
    """Try to prove "δ(ε) ≤ ``delta`` at ε = ``bracket.upper``", and that a smaller ε would not do.

    Guarantee: ``proven`` is true only where the enclosure says so.

    Args:
        mechanism: what was priced.
        delta: the target.
        bracket: the accountant's bracket of ε.

    Raises:
        FailureError: the enclosure contradicts the bracket: one of the two is wrong.
        UseError: python-flint is missing.
    """
    claim = f"delta({bracket.upper!r}) <= {delta!r}"
    try:
        if bracket.upper == float("inf"):
            raise UseError("the accountant gives no finite epsilon")
        steps, added = _priced(mechanism)
    except UseError as error:
        return {"claim": claim, "proven": False, "why": error.message}
    at_upper = enclose_delta(steps, bracket.upper, size=delta)
    upper = added(at_upper.upper, bracket.upper)
    result = {"claim": claim, "proven": upper <= delta, **_numbers(at_upper, upper), "scope": SCOPE}
    exact = not isinstance(mechanism, Capped)
    if exact and at_upper.lower > delta:
        raise _contradiction(f"delta({bracket.upper!r}) > {at_upper.lower!r}, over {delta!r}")
    if not result["proven"]:
        enclosed = f"delta is enclosed in [{at_upper.lower!r}, {upper!r}] only"
        result["why"] = at_upper.why or enclosed
    if exact and bracket.lower > 0:
        at_lower = enclose_delta(steps, bracket.lower, size=delta)
        if at_lower.upper < delta:
            raise _contradiction(f"delta({bracket.lower!r}) < {at_lower.upper!r}, under {delta!r}")
        result["epsilon_lower_bound"] = {
            "claim": f"delta({bracket.lower!r}) >= {delta!r}",
            "proven": at_lower.lower >= delta,
            **_numbers(at_lower, at_lower.upper),
        }
    return result


def prove_delta(mechanism: NoisySteps, epsilon: float, bracket: Bracket) -> dict[str, Any]:
    """Enclose δ at a given ε, beside the accountant's bracket of it.

    Raises:
        FailureError: the two brackets have no common point.
        UseError: python-flint is missing, or the mechanism has no proof.
    """
    steps, added = _priced(mechanism)
    enclosure = enclose_delta(steps, epsilon, size=bracket.upper)
    upper = added(enclosure.upper, epsilon)
    exact = not isinstance(mechanism, Capped)
    if upper < bracket.lower or (exact and enclosure.lower > bracket.upper):
        raise _contradiction(
            f"delta({epsilon!r}) lies in [{enclosure.lower!r}, {upper!r}], "
            f"not in [{bracket.lower!r}, {bracket.upper!r}]"
        )
    return {
        "claim": f"delta({epsilon!r}) <= {bracket.upper!r}",
        "proven": upper <= bracket.upper,
        **_numbers(enclosure, upper),
        "scope": SCOPE,
        **({"why": enclosure.why} if enclosure.why else {}),
    }


def _priced(mechanism: NoisySteps) -> tuple[Steps, Any]:
    """The law, and what a cap on the batch adds to an upper bound of δ."""
    if not isinstance(mechanism, Capped):
        return steps_of(mechanism), lambda delta, epsilon: delta
    from userdp.accounting.proof.enclosure import binomial_tail_added

    drawn, cap = mechanism.drawn, mechanism.cap
    return steps_of(mechanism.mixture), lambda delta, epsilon: binomial_tail_added(
        delta, epsilon, drawn, cap=cap, count=mechanism.steps
    )


def _numbers(enclosure: Enclosure, upper: float) -> dict[str, Any]:
    return {
        "epsilon": enclosure.epsilon,
        "delta_lower": enclosure.lower,
        "delta_upper": upper,
        "remove": [enclosure.remove.lower, enclosure.remove.upper],
        "add": [enclosure.add.lower, enclosure.add.upper],
        "how": [enclosure.remove.how, enclosure.add.how],
        "bits": enclosure.bits,
        "seconds": round(enclosure.seconds, 3),
    }


def _contradiction(words: str) -> FailureError:
    return FailureError(
        f"the proof contradicts the accountant: ball arithmetic proves {words}. One of the two is "
        "wrong, and this epsilon must not be used",
        hint="please report these parameters",
    )
