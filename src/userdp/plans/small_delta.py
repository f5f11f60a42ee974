"""Is δ small beside the number of people? If not, a plan is refused before training, or warned of.

A mechanism that publishes all of one user, drawn by lot among n, is (0, 1/n)-DP. So a δ of 1/n or
more is a promise without worth. The rule n^-1.1 is that of Charles et al. 2024, Section
5, after Ponomareva et al. 2023, Section 5.3.2.

n is the largest number of users that the declared constants allow: the declared number of users
where there is one; else the declared number of examples, of which every user has at least one, so
that a δ below 1/examples is below 1/users whoever holds them.
"""

from __future__ import annotations

import math
from enum import StrEnum

from userdp.core.errors import UseError
from userdp.core.vocabulary import delta_up, require_count, require_delta
from userdp.plans.frozen_plan import Plan


class DeltaSize(StrEnum):
    """δ against n: within the rule n^-1.1; above the rule, but below 1/n; or at least 1/n."""

    WITHIN_RULE = "within the rule"
    ABOVE_RULE = "above the rule"
    TOO_LARGE = "too large"


def rule_of(population: int) -> float:
    """n^-1.1."""
    return float(float(population) ** -1.1)


def delta_for(count: int) -> float:
    """δ = n^-1.1 for a *declared* n.

    >>> delta_up(delta_for(135_818_730), 3)
    '1.14e-09'
    """
    if require_count("n", count, at_least=2) < 100:
        raise UseError(
            f"delta = n^-1.1 of n = {count} is {delta_up(rule_of(count), 2)}: with so few people "
            "a promise with that delta says little",
            hint="give --delta",
        )
    return rule_of(count)


def size_of(delta: float, population: int) -> DeltaSize:
    """How ``delta`` compares with 1/n and n^-1.1.

    >>> str(size_of(1e-3, 1000)), str(size_of(9e-4, 1000)), str(size_of(1e-5, 1000))
    ('too large', 'above the rule', 'within the rule')
    """
    n = require_count("population", population)
    # Both ways of rounding: 1/n and n are floats here, and equality is too large.
    if require_delta(delta) * n >= 1 or delta >= 1 / n:
        return DeltaSize.TOO_LARGE
    return DeltaSize.ABOVE_RULE if delta > rule_of(n) else DeltaSize.WITHIN_RULE


def require_small_delta(
    delta: float, population: int, *, counted: str, allow_large_delta: bool = False
) -> str | None:
    """Refuse a δ of 1/n or more; a warning for one above n^-1.1, None for any other.

    Args:
        delta: of the claim.
        population: n, see the module.
        counted: the units that n counts: "users", "examples", "subjects".
        allow_large_delta: warn in place of refusing.

    Raises:
        UseError: δ is 1/n or more, and that was not allowed.
    """
    size = size_of(delta, population)
    if size is DeltaSize.WITHIN_RULE:
        return None
    n = f"{population:,} {counted}"
    if size is DeltaSize.ABOVE_RULE:
        return (
            f"delta = {delta_up(delta)} is below 1/n = {1 / population:.3g} of the declared {n}, "
            f"but above the rule n^-1.1 = {rule_of(population):.2g}: choose a smaller one before "
            "training"
        )
    what = (
        f"delta = {delta_up(delta)} is not below 1/n = {1 / population:.3g} of the declared {n}: "
        "publishing all that one user in n wrote would be within such a claim"
    )
    if allow_large_delta:
        return what
    # Rounded to the nearest, as a proposal; what is then given is judged anew.
    rule = f"{rule_of(population):.1g}"
    raise UseError(
        what,
        hint=f"give --delta {rule} (n^-1.1) or less; for a toy, --allow-large-delta (of train, "
        "--set run.allow_large_delta=true; federate has none)",
    )


def plan_with_small_delta(
    plan: Plan,
    *,
    users: int | None = None,
    total_delta: float = 0.0,
    allow_large_delta: bool = False,
) -> str | None:
    """`require_small_delta` of a plan, and of the total that pays for it.

    Args:
        plan: to be run.
        users: the declared number of users, where a plan of examples was made from one.
        total_delta: δ of the store's budget, or the one a claim is asked for at; 0 without one.
        allow_large_delta: warn in place of refusing.
    """
    return require_small_delta(
        max(plan.budget.target_delta, total_delta),
        plan.population if users is None else users,
        counted="users" if users is not None or plan.sampling.by_user else "examples",
        allow_large_delta=allow_large_delta,
    )


def without_epsilon(plan: Plan) -> str | None:
    """A warning of a plan of which no ε holds; None of any other."""
    if math.isfinite(plan.guarantee().epsilon):
        return None
    return (
        "no epsilon holds for this plan, whose noise is too small for its steps and delta: nothing "
        "will be claimed of the run or, from here on, of the store. Take more noise or fewer steps"
    )
