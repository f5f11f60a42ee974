"""Private statistics: distributed as they should be, charged before they are drawn."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest

from tests.data.corpora import corpus, prepared
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import parse_statistic, release
from userdp.queries import release as release_function
from userdp.queries import statistics as module
from userdp.queries.statistics import candidates

pytest.importorskip("opendp", reason="the extra queries is not installed")
COUNTS = np.array([1, 2, 3, 5, 8, 13, 21, 40, 40, 2000])
DRAWS = 2000


@pytest.fixture
def store(tmp_path):
    return prepared(corpus(40), tmp_path / "store", held_out_users=0)


def answers(name, counts, epsilon, draws=DRAWS) -> np.ndarray:
    asked = module.mechanism(parse_statistic(name), epsilon=epsilon, most_examples=64)
    held = counts.tolist()
    return np.array([asked(held) for _ in range(draws)])


def discrete_laplace_deviation(scale: float) -> float:
    q = math.exp(-1 / scale)
    return math.sqrt(2 * q) / (1 - q)


@pytest.mark.parametrize(
    ("name", "truth", "sensitivity"), [("users", 10, 1), ("examples", 133 + 64, 64)]
)
def test_counts_have_discrete_laplace_noise_of_their_sensitivity(name, truth, sensitivity):
    found = answers(name, COUNTS, epsilon=0.5)
    expected = discrete_laplace_deviation(sensitivity / 0.5)
    assert abs(found.mean() - truth) < 5 * expected / math.sqrt(DRAWS)
    assert 0.85 < found.std() / expected < 1.15


def test_half_the_noise_is_caught():
    """The twin of the test above."""
    found = answers("users", COUNTS, epsilon=1.0)
    assert not 0.85 < found.std() / discrete_laplace_deviation(1 / 0.5) < 1.15


@pytest.mark.slow
def test_the_probability_of_any_answer_changes_by_at_most_e_to_the_epsilon():
    """Over neighbours that differ by the largest user; frequencies with five deviations of room."""
    epsilon = 0.8
    for name in ("users", "median", "p90"):
        one, other = (answers(name, counts, epsilon) for counts in (COUNTS, COUNTS[:-1]))
        for value in np.unique(np.append(one, other)):
            first, second = np.mean(one == value), np.mean(other == value)
            room = 5 * math.sqrt(max(first, second) / DRAWS) + 5 / DRAWS
            assert first <= math.exp(epsilon) * second + room
            assert second <= math.exp(epsilon) * first + room


def test_a_quantile_without_noise_to_speak_of_is_the_quantile():
    many = np.repeat(COUNTS, 50)
    assert set(answers("median", many, 50.0, draws=20)) <= {8, 12}
    assert set(answers("p90", many, 50.0, draws=20)) <= {48, 64}


def test_candidates_are_public_and_rise_to_the_bound():
    assert candidates(1) == [1]
    assert candidates(4096)[-2:] == [3072, 4096]
    assert all(a < b for a, b in zip(candidates(999), candidates(999)[1:], strict=False))


def test_each_answer_is_a_line_of_the_ledger_and_adds_to_the_claim(store):
    got = release(store, epsilon=0.6)
    assert [answer.name for answer in got] == ["users", "examples", "median"]
    charges = StoreLedger(store.path).charges()
    assert [charge.run_id for charge in charges] == [answer.query_id for answer in got]
    assert [(charge.query_name, charge.answer) for charge in charges] == [
        (answer.name, answer.value) for answer in got
    ]
    with pytest.raises(UseError, match="already"):
        StoreLedger(store.path).answer(got[0].query_id, value=1)
    with pytest.raises(UseError, match="no query"):
        StoreLedger(store.path).answer("other", value=1)
    total = claim(store.path).guarantee
    assert total.epsilon == pytest.approx(0.6, rel=1e-12)
    assert total.delta == 0.0
    plan = uls_plan()
    StoreLedger(store.path).reserve("run", plan)
    both = claim(store.path).guarantee
    assert both.epsilon == pytest.approx(0.6 + plan.guarantee().epsilon, rel=1e-12)
    assert claim(store.path, delta=1e-5).guarantee.delta == pytest.approx(1e-5)


def test_an_answer_is_charged_even_if_it_is_never_drawn(store, monkeypatch):
    def crash(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["userdp.queries.release"], "draw", crash)
    with pytest.raises(KeyboardInterrupt):
        release_function(store, epsilon=0.3, names=("users",))
    assert claim(store.path).guarantee.epsilon == pytest.approx(0.3)
    assert [charge.answer for charge in StoreLedger(store.path).charges()] == [None]


def test_an_answer_drawn_before_its_line_is_caught(store, monkeypatch):
    """The twin: a ledger that does not write leaves no charge."""
    for name in ("query", "answer"):
        monkeypatch.setattr(StoreLedger, name, lambda *arguments, **options: None)
    release_function(store, epsilon=0.3, names=("users",))
    assert StoreLedger(store.path).charges() == []


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 701.0])
def test_an_epsilon_out_of_range_is_refused_and_charges_nothing(store, epsilon):
    with pytest.raises(UseError, match="epsilon"):
        release(store, epsilon=epsilon)
    assert StoreLedger(store.path).charges() == []
    with pytest.raises(UseError):
        StoreLedger(store.path).query("q", name="users", pure_epsilon=epsilon)


@pytest.mark.parametrize("name", ["", "mean", "p0", "p100", "p1.5", "p²"])
def test_an_unknown_statistic_is_refused(store, name):
    with pytest.raises(UseError, match="no statistic is named"):
        release(store, epsilon=1.0, names=(name,))


def test_a_mechanism_that_would_cost_more_is_never_used():
    for epsilon in (1e-3, 0.1, 1 / 3, 1.0, 7.7):
        dp, space = module._opendp()

        def build(scale, dp=dp, space=space):
            return space >> dp.t.then_count() >> dp.m.then_laplace(scale=scale)

        mechanism = module._within(build, epsilon)
        assert epsilon * 0.999 <= mechanism.map(1) <= epsilon
