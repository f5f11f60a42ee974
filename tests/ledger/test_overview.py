"""How many runs what is left of a budget still buys."""

from __future__ import annotations

import math

import pytest

from tests.plans import els_plan, uls_plan
from userdp.accounting.filters import RenyiFilter
from userdp.ledger.overview import _bought_of_filter, _bought_of_total, _cost

PLAN = uls_plan()


@pytest.mark.parametrize(("epsilons", "deltas", "runs"), [(3.5, 10, 3), (3.5, 2.2, 2), (1.2, 1, 1)])
def test_a_total_buys_runs_as_long_as_both_epsilon_and_delta_last(epsilons, deltas, runs):
    own = PLAN.guarantee()
    buys = _bought_of_total(epsilons * own.epsilon, deltas * own.delta, PLAN)
    assert buys is not None
    assert buys.runs == runs


def test_a_filter_buys_runs_as_long_as_its_reserve_of_delta_lasts():
    """Of runs that it knows by their (epsilon, delta) only, each takes its delta whole."""
    plan = els_plan(fixed_graph=True)
    delta = plan.guarantee().delta
    opened = RenyiFilter.opened(epsilon=30.0, delta=5 * delta, reserved=0.5)
    like = _cost(plan, opened)
    assert like.delta >= delta
    assert math.floor(opened.capacity / like.rho) > 2, "or the reserve would not be what ends"
    buys = _bought_of_filter(opened, [], plan)
    assert buys is not None
    assert buys.runs == 2
