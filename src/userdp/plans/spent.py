"""What the steps of a plan that were attempted so far cost, cheaply enough to be shown beside them.

This is no claim: a run reserves its whole plan before its first step, and claims the whole plan
until it has finished. It tells whoever watches a run how much of that is used up. What an
interrupted run is said to have cost (`Claim.so_far`) is priced at its very number of steps, once,
and may therefore be less.
"""

from __future__ import annotations

import math
from functools import cached_property

from userdp.errors import UserdpError
from userdp.plans.plan import Plan
from userdp.vocabulary import require_count, round_up

_PARTS = 20
"""A plan is priced at so many places at most, since a price may take a second to compute."""


class Spent:
    """The ε of the first steps of a plan.

    Guarantee: `epsilon` is an upper bound, never below what the plan's accountant says of so many
    steps or of the whole plan, whichever is less: between two places that it prices it tells the
    price of the later one.

    Args:
        plan: whose sampling is covered by an accountant.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._every = -(-plan.steps // _PARTS)
        self._prices: dict[int, float] = {}

    @cached_property
    def reserved(self) -> float:
        """ε of the whole plan."""
        return self._plan.guarantee().epsilon

    def epsilon(self, attempted: int) -> float:
        """ε of the first ``attempted`` steps, from 0 to all of the plan's."""
        require_count("attempted", attempted, at_least=0, at_most=self._plan.steps)
        later = min(self._plan.steps, -(-attempted // self._every) * self._every)
        if later == self._plan.steps:
            return self.reserved
        if later not in self._prices:
            self._prices[later] = self._plan.guarantee(later).epsilon
        # The accountant's own margin may put fewer steps a last digit above all of them.
        return min(self._prices[later], self.reserved)

    def words(self, attempted: int) -> str:
        """The same in words that nobody takes for a claim; none where there is no price.

        What is only shown must not end the run that it is shown of.
        """
        try:
            spent, reserved = self.epsilon(attempted), self.reserved
        except UserdpError:
            return ""
        if not math.isfinite(reserved):
            return ""
        return f"epsilon at most {round_up(spent)} of {round_up(reserved)} reserved"
