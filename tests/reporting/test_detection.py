"""The figure of the public page: each line bounds every attack, and the corner is the claim's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from tests.reporting.conftest import MakeRun, examples_plan, users_plan
from userdp.claims import Lineage
from userdp.claims.parts import Query
from userdp.reporting.detection import corner_of, curve_of, detection_plot
from userdp.reporting.run_facts import read_run, read_runs


def attack(q: float, sigma: float, steps: int, rates: np.ndarray) -> np.ndarray:
    """What a real attacker reaches who sees the noisy sums and knows all but one user's part.

    Its statistic is the likelihood ratio of all steps; it is simulated, so it is right within 0.01.
    """
    draw = np.random.default_rng(7)
    people = 100_000

    def scores(took_part: bool) -> np.ndarray:
        total = np.zeros(people)
        for _ in range(steps):
            drawn = (draw.random(people) < q) & took_part
            x = drawn + sigma * draw.standard_normal(people)
            total += np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2)))
        return total

    thresholds = np.quantile(scores(False), 1 - rates)
    return (scores(True)[:, None] > thresholds).mean(axis=0)


def test_no_simulated_attack_reaches_above_the_line(make_run: MakeRun) -> None:
    curve = curve_of(read_run(make_run()).claim)
    plan = users_plan()
    rates = np.array([0.001, 0.01, 0.1, 0.3, 0.6, 0.9])
    reached = attack(0.016, plan.noise.multiplier, plan.steps, rates)
    bounds = np.array([curve.max_true_positive_rate(rate) for rate in rates])
    assert (reached <= bounds + 0.005).all()
    # the broken twin: a line for a tenth of the sampling lies below the same attack
    assert (attack(0.16, plan.noise.multiplier, plan.steps, rates) > bounds + 0.005).any()


def test_the_mechanisms_own_line_lies_below_that_of_its_epsilon_and_delta(make_run) -> None:
    run = read_run(make_run())
    alone = read_run(
        make_run("b", lineage=Lineage(parts=(Query(id="q", name="n", pure_epsilon=1e-9),)))
    )
    assert len(curve_of(alone.claim).epsilons) == 1
    for rate in (0.01, 0.2, 0.5):
        own = curve_of(run.claim).max_true_positive_rate(rate)
        assert own <= curve_of(alone.claim).max_true_positive_rate(rate) + 1e-9


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 8.0, 800.0])
def test_at_the_corner_false_alarms_and_misses_are_equal(epsilon: float) -> None:
    """Both lines of the definition of DP meet there (Kairouz, Oh and Viswanath 2015)."""
    x, delta = corner_of(epsilon, 1e-5), 1e-5
    if epsilon < 700:
        assert math.exp(epsilon) * x + delta == pytest.approx(1 - x, rel=1e-12)
    assert 0 <= x <= 0.5


def test_it_shows_the_claims_beside_chance_and_two_epsilons(make_run: MakeRun) -> None:
    runs = read_runs([make_run("a"), make_run("b", examples_plan()), make_run("c", private=False)])
    plot = detection_plot(runs)
    assert plot is not None
    names = [series.name for series in plot.series if series.name]
    assert names == ["a", "b", "corner of (ε, δ) alone", "chance", "ε = 1", "ε = 8"]
    assert detection_plot(runs[2:]) is None
    gaussian = norm.cdf(norm.ppf(0.1) + 1.0)  # of a Gaussian mechanism with μ = 1, for scale
    reference = next(series for series in plot.series if series.name == "ε = 8")
    assert np.interp(0.1, reference.xs, reference.ys) > gaussian
