"""White-box checks on simulated runs: right ones pass, each broken one is flagged by name."""

from dataclasses import replace

import numpy as np
import pytest

from tests.auditing.toy import audit_plan
from userdp.auditing.observer import Observed
from userdp.auditing.steps import LEVEL, audit_steps
from userdp.core.codec import encode
from userdp.sampling import FixedSizeUsers

PLAN = audit_plan(steps=30)
PARTS = [(64 * k, 64 * k + 64) for k in range(10)]


def right(seed, population=160):
    draw = np.random.default_rng(seed)
    return Observed(
        population=population,
        parts=PARTS,
        cohorts=[np.flatnonzero(draw.random(population) < 0.1) for _ in range(30)],
        noise=[draw.standard_normal(640).astype(np.float32) for _ in range(30)],
        moves=[0.99],
    )


def flagged(seen, plan=PLAN):
    return audit_steps(seen, plan, worst_move=0.99).flagged


@pytest.mark.slow
def test_right_runs_are_flagged_as_seldom_as_the_level_says():
    smallest = []
    for seed in range(60):
        found = audit_steps(right(seed), PLAN, worst_move=0.99)
        assert not found.flagged
        assert found.epsilon_lower < PLAN.guarantee().epsilon
        smallest.append(min(c.p_value for c in found.checks if c.p_value is not None))
    assert np.quantile(smallest, 0.5) > 10 * LEVEL


def less_noise(seen):
    seen.noise = [noise * 0.9 for noise in seen.noise]


def uniform(seen):
    draw = np.random.default_rng(1)
    seen.noise = [draw.uniform(-(3**0.5), 3**0.5, 640).astype(np.float32) for _ in range(30)]


def one_pair(seen):
    seen.noise[17] = seen.noise[4]


def tensors_alike(seen):
    seen.noise = [np.tile(noise[:64], 10) for noise in seen.noise]


def twice_as_many(seen):
    draw = np.random.default_rng(2)
    seen.cohorts = [np.flatnonzero(draw.random(160) < 0.2) for _ in range(30)]


def fixed_size(seen):
    draw = np.random.default_rng(2)
    seen.cohorts = [draw.choice(160, 16, replace=False) for _ in range(30)]


def shuffled(seen):
    draw = np.random.default_rng(2)
    passes = [draw.permutation(160).reshape(10, 16) for _ in range(3)]
    seen.cohorts = list(np.concatenate(passes))


def unclipped(seen):
    seen.moves = [0.9, 1.001]


@pytest.mark.parametrize(
    ("break_", "name"),
    [
        (less_noise, "noise scale"),
        (uniform, "noise shape"),
        (one_pair, "noise repeated between steps"),
        (tensors_alike, "noise repeated within a step"),
        (twice_as_many, "number drawn"),
        (fixed_size, "size of draws"),
        (shuffled, "participation"),
        (unclipped, "sensitivity"),
    ],
)
def test_broken_runs_are_caught_by_name(break_, name):
    seen = right(5)
    break_(seen)
    assert name in flagged(seen)


@pytest.mark.slow
def test_the_stated_power_is_what_happens():
    """Noise at the stated ratio is flagged in about 95% of runs; nearer to 1 in fewer."""
    ratio = audit_steps(right(0), PLAN, worst_move=0.99).detectable_noise_ratio
    assert 0.9 < ratio < 1

    def part_flagged(ratio):
        found = []
        for seed in range(50):
            seen = right(seed)
            seen.noise = [noise * ratio for noise in seen.noise]
            found.append("noise scale" in flagged(seen))
        return np.mean(found)

    assert 0.86 <= part_flagged(ratio) <= 1
    assert part_flagged((1 + ratio) / 2) < 0.7


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_flagged(value):
    seen = right(3)
    seen.noise[7][100] = value
    assert "noise scale" in flagged(seen)
    seen = right(3)
    seen.moves = [0.9, np.nan]  # Python's max would drop it
    assert flagged(seen) == ("sensitivity",)


def test_the_false_alarms_of_all_checks_add_up():
    """Seven p-values and the bound by the noise; a blind check cannot raise an alarm."""
    found = audit_steps(right(0), PLAN, worst_move=0.99)
    assert found.false_alarm == pytest.approx(7 * LEVEL + 1e-3)
    assert encode(found)["false_alarm"] == found.false_alarm
    seen = right(0)
    seen.parts, seen.cohorts, seen.noise = PARTS[:1], seen.cohorts[:1], [seen.noise[0][:64]]
    alone = audit_steps(seen, PLAN, worst_move=0.99)
    assert alone.false_alarm == pytest.approx(5 * LEVEL + 1e-3)
    assert sum(check.p_value is None for check in alone.checks) == 3


def test_draws_of_one_size_are_not_held_against_a_plan_of_such_draws():
    seen, sampling = right(3), FixedSizeUsers(batch_size=16, least_population=150, group_size=2)
    fixed_size(seen)
    assert flagged(seen, replace(PLAN, sampling=sampling)) == ()
