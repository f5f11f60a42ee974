"""Private statistics: distributed as they should be, charged before they are drawn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tests.ledgers import reserve
from tests.plans import uls_plan
from userdp.claims import claim
from userdp.cli.app import run
from userdp.commands.store import budget
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import release
from userdp.queries import statistics as module
from userdp.queries.statistics import (
    bounded_sum,
    charge,
    draw_medians,
    mechanism,
    quantile,
)

COUNTS = np.array([1, 2, 3, 5, 8, 13, 21, 40, 40, 2000])
DRAWS = 2000


def answers(name, counts, epsilon, draws=DRAWS):
    asked = mechanism(name, epsilon=epsilon, most_examples=64)
    return np.array([asked(counts.tolist()) for _ in range(draws)])


def deviation(scale):
    """Of discrete Laplace noise."""
    q = math.exp(-1 / scale)
    return math.sqrt(2 * q) / (1 - q)


def laplace(found, *, truth, sensitivity):
    """Whether answers at ε = 0.5 have the mean and the deviation of that sensitivity."""
    expected = deviation(sensitivity / 0.5)
    near = abs(found.mean() - truth) < 5 * expected / math.sqrt(len(found))
    return bool(near and 0.85 < found.std() / expected < 1.15)


def test_counts_have_discrete_laplace_noise_of_their_sensitivity():
    assert laplace(answers("users", COUNTS, 0.5), truth=10, sensitivity=1)
    assert laplace(answers("examples", COUNTS, 0.5), truth=133 + 64, sensitivity=64)
    assert not laplace(answers("users", COUNTS, 1.0), truth=10, sensitivity=1), "half the noise"


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


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1 / 3, 1.0, 7.7])
def test_the_price_of_one_user_is_the_library_s_own(epsilon):
    for asked in (
        bounded_sum(-5, 4, epsilon=epsilon),
        bounded_sum(0, 1, epsilon=epsilon),
        quantile([1, 2, 3], at=0.5, epsilon=epsilon),
    ):
        assert 0.99 * epsilon < asked.map(1) <= epsilon


def worst_ratio(*, claimed, used):
    """ln of the largest ratio of frequencies between neighbours, where both are well counted."""
    choose, held = quantile([0, 1, 2, 3, 4], at=0.5, epsilon=used), [1, 1, 2, 3, 4, 4]
    base, more = (
        np.bincount([choose(users) for _ in range(2 * DRAWS)], minlength=5) / (2 * DRAWS)
        for users in (held, [*held, 0])
    )
    seen = np.minimum(base, more) > 0.02
    return float(np.abs(np.log(base[seen] / more[seen])).max()) - claimed


def test_one_user_moves_each_frequency_of_a_quantile_by_at_most_its_price():
    assert worst_ratio(claimed=1.0, used=1.0) < 0.25
    assert worst_ratio(claimed=0.2, used=3.0) > 0.25, "the twin spends more than it says"


def test_a_quantile_without_noise_to_speak_of_is_the_quantile():
    many = np.repeat(COUNTS, 50)
    assert set(answers("median", many, 50.0, draws=20)) <= {8, 12}
    assert set(answers("p90", many, 50.0, draws=20)) <= {48, 64}


def test_medians_of_many_users_are_near_and_of_none_are_on_the_grid():
    draw = np.random.default_rng(0)
    values = {"1": draw.lognormal(1, 0.4, 4000), "2": draw.lognormal(0.5, 0.4, 4000)}
    found = draw_medians(values, epsilon=1.0)
    for name, numbers in values.items():
        assert found[name] == pytest.approx(float(np.median(numbers)), rel=0.1)
    assert 2.0**-20 <= draw_medians({"1": np.zeros(0)}, epsilon=1.0)["1"] <= 2.0**20


def test_each_answer_is_a_line_of_the_ledger_and_adds_to_the_claim(store):
    got = release(store, epsilon=0.6)
    assert [answer.name for answer in got] == ["users", "examples", "median"]
    history, plan = StoreLedger(store.path).history(), uls_plan()
    assert history.answers == {answer.query_id: answer.value for answer in got}
    names = {run_id: charge.pays_for.name for run_id, charge in history.charges.items()}
    assert names == {answer.query_id: answer.name for answer in got}
    assert claim(store.path).guarantee.delta == 0.0
    reserve(StoreLedger(store.path), "run", plan)
    both = claim(store.path).guarantee
    assert both.epsilon == pytest.approx(0.6 + plan.guarantee().epsilon, rel=1e-12)


def test_answers_are_charged_even_if_none_is_drawn(store, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "bounded_sum", lambda *bounds, epsilon: crash)
    with pytest.raises(KeyboardInterrupt):
        release(store, epsilon=0.3, names=("users", "examples"))
    assert claim(store.path).guarantee.epsilon == pytest.approx(0.3)
    history = StoreLedger(store.path).history()
    assert (len(history.charges), history.answers) == (2, {})


def test_what_a_budget_refuses_in_part_is_not_charged_in_part(store):
    budget(store.path, epsilon=1.0, delta=1e-5)
    with pytest.raises(UseError, match="beyond its budget"):
        charge(store, [("small", 0.1), ("large", 5.0)])
    assert StoreLedger(store.path).history().charges == {}


def test_an_answer_drawn_before_its_line_is_caught(free):
    """The twin: a ledger that does not write leaves no charge."""
    release(free, epsilon=0.3, names=("users",))
    assert StoreLedger(free.path).history().charges == {}


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 701.0])
def test_bad_use_is_refused_and_charges_nothing(store, epsilon):
    for asked in (lambda: release(store, epsilon=epsilon), lambda: charge(store, [("m", epsilon)])):
        with pytest.raises(UseError, match="epsilon"):
            asked()
    for name in ("", "mean", "p0", "p100", "p1.5", "p²"):
        with pytest.raises(UseError, match="no statistic is named"):
            release(store, epsilon=1.0, names=("users", name))
    assert StoreLedger(store.path).history().charges == {}


def test_the_command_shows_private_answers_and_no_exact_ones_beside_them(store, capsys):
    asked = ["--epsilon", "0.5", "--ask", "users", "--ask", "p90", "--json"]
    assert run(["store", "stats", str(store.path), *asked]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [answer["name"] for answer in shown["answers"]] == ["users", "p90"]
    assert "splits" not in shown
