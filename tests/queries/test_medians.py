"""Private medians on a logarithmic grid: exact law, charged before they are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.data.corpora import corpus, prepared
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import charge_medians, draw_medians
from userdp.queries.medians import to_steps
from userdp.queries.statistics import quantile

pytest.importorskip("opendp", reason="the extra queries is not installed")

GRID = [0, 1, 2, 3, 4]
DRAWS = 4000


@pytest.fixture
def store(tmp_path):
    return prepared(corpus(8), tmp_path / "store", held_out_users=0)


def frequencies(held: list[int], *, epsilon: float) -> np.ndarray:
    choose = quantile(GRID, at=0.5, epsilon=epsilon)
    found = np.bincount([choose(held) for _ in range(DRAWS)], minlength=len(GRID))
    return found / DRAWS


def worst_ratio(*, claimed: float, used: float) -> float:
    """ln of the largest ratio of frequencies between neighbours, where both are well counted."""
    held = [1, 1, 2, 3, 4, 4]
    base, more = frequencies(held, epsilon=used), frequencies([*held, 0], epsilon=used)
    seen = np.minimum(base, more) > 0.02
    return float(np.abs(np.log(base[seen] / more[seen])).max()) - claimed


@pytest.mark.slow
def test_one_user_moves_each_frequency_by_at_most_its_price():
    assert worst_ratio(claimed=1.0, used=1.0) < 0.25


def test_three_times_the_price_is_caught():
    """The twin: the same test with a mechanism that spends more than it says."""
    assert worst_ratio(claimed=0.2, used=3.0) > 0.25


def test_steps_go_up_with_the_number():
    numbers = np.geomspace(1e-7, 1e7, 200)
    steps = to_steps(numbers)
    assert steps == sorted(steps)
    inner = [n for n in numbers if 2**-19 < n < 2**19]
    for number, step in zip(inner, to_steps(np.array(inner)), strict=True):
        assert abs(math.log2(2 ** (step / 8) / number)) <= 1 / 16 + 1e-9


def test_medians_of_many_users_are_near_and_cost_what_the_ledger_says(store):
    draw = np.random.default_rng(0)
    values = {"1": draw.lognormal(1, 0.4, 4000), "2": draw.lognormal(0.5, 0.4, 4000)}
    query_id = charge_medians(store, epsilon=1.0, subject="median gradient norms", of=Lineage())
    found = draw_medians(values, epsilon=1.0, query_id=query_id)
    for name, numbers in values.items():
        assert found.medians[name] == pytest.approx(float(np.median(numbers)), rel=0.1)
    (charge,) = StoreLedger(store.path).charges()
    assert (charge.run_id, charge.query_epsilon) == (query_id, 1.0)
    assert claim(store.path).guarantee.epsilon == pytest.approx(1.0)


def test_no_users_at_all_still_give_an_answer(store):
    query_id = charge_medians(store, epsilon=1.0, subject="nobody", of=Lineage())
    found = draw_medians({"1": np.zeros(0)}, epsilon=1.0, query_id=query_id)
    assert 2.0**-20 <= found.medians["1"] <= 2.0**20


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_a_price_out_of_range_charges_nothing(store, epsilon):
    with pytest.raises(UseError):
        charge_medians(store, epsilon=epsilon, subject="x", of=Lineage())
    assert StoreLedger(store.path).charges() == []
