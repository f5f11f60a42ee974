"""White-box checks on simulated runs: right ones pass, each broken one is flagged by name."""

from dataclasses import replace

import numpy as np
import pytest

from tests.auditing.toy import audit_plan
from userdp.auditing.observer import Observed
from userdp.auditing.step_checks import LEVEL, audit_steps
from userdp.core.codec import encode
from userdp.sampling import FixedSizeUsers

PLAN = audit_plan(steps=30)
PARTS = [(64 * k, 64 * k + 64) for k in range(10)]


def right(seed):
    draw = np.random.default_rng(seed)
    return Observed(
        population=160,
        parts=PARTS,
        cohorts=[np.flatnonzero(draw.random(160) < 0.1) for _ in range(30)],
        noise=[draw.standard_normal(640).astype(np.float32) for _ in range(30)],
        moves=[0.99],
    )


def audited(seen, plan=PLAN):
    return audit_steps(seen, plan, worst_move=0.99)


def at_one_place(value):
    return lambda noise, draw: [*noise[:7], np.append(noise[7][1:], np.float32(value)), *noise[8:]]


FIXED = [draw.choice(160, 16, replace=False) for draw in [np.random.default_rng(2)] for _ in PARTS]
BROKEN = [
    ("noise scale", "noise", lambda noise, draw: [0.9 * one for one in noise]),
    ("noise scale", "noise", at_one_place(np.nan)),
    ("noise scale", "noise", at_one_place(np.inf)),
    ("noise shape", "noise", lambda noise, draw: list(draw.uniform(-(3**0.5), 3**0.5, (30, 640)))),
    ("noise repeated between steps", "noise", lambda noise, draw: [*noise[:29], noise[4]]),
    ("noise repeated within a step", "noise", lambda noise, draw: [
        np.tile(one[:64], 10) for one in noise
    ]),
    ("number drawn", "cohorts", lambda cohorts, draw: [
        np.flatnonzero(draw.random(160) < 0.2) for _ in cohorts
    ]),
    ("size of draws", "cohorts", lambda cohorts, draw: FIXED * 3),
    ("participation", "cohorts", lambda cohorts, draw: [
        batch for _ in range(3) for batch in draw.permutation(160).reshape(10, 16)
    ]),
    ("sensitivity", "moves", lambda moves, draw: [0.9, 1.001]),
    ("sensitivity", "moves", lambda moves, draw: [0.9, np.nan]),  # Python's max would drop it
]  # fmt: skip


@pytest.mark.parametrize(("name", "field", "break_"), BROKEN)
def test_broken_runs_are_caught_by_name(name, field, break_):
    seen = right(5)
    setattr(seen, field, break_(getattr(seen, field), np.random.default_rng(2)))
    assert name in audited(seen).flagged


@pytest.mark.slow
def test_the_stated_power_is_what_happens():
    """Noise at the stated ratio is flagged in about 95% of runs; nearer to 1 in fewer."""
    ratio = audited(right(0)).detectable_noise_ratio
    assert 0.9 < ratio < 1

    def part_flagged(ratio):
        runs = [right(seed) for seed in range(50)]
        less = [replace(one, noise=[noise * ratio for noise in one.noise]) for one in runs]
        return np.mean(["noise scale" in audited(one).flagged for one in less])

    assert 0.86 <= part_flagged(ratio) <= 1
    assert part_flagged((1 + ratio) / 2) < 0.7


def test_the_false_alarms_of_all_checks_add_up():
    """Seven p-values and the bound by the noise; a blind check cannot raise an alarm."""
    found, seen = audited(right(0)), right(0)
    assert encode(found)["false_alarm"] == pytest.approx(7 * LEVEL + 1e-3)
    one = replace(seen, parts=PARTS[:1], cohorts=seen.cohorts[:1], noise=[seen.noise[0][:64]])
    alone = audited(one)
    assert alone.false_alarm == pytest.approx(5 * LEVEL + 1e-3)
    assert sum(check.p_value is None for check in alone.checks) == 3


def test_draws_of_one_size_are_not_held_against_a_plan_of_such_draws():
    sampling = FixedSizeUsers(batch_size=16, least_population=150, group_size=2)
    fixed = replace(right(3), cohorts=FIXED * 3)
    assert audited(fixed, replace(PLAN, sampling=sampling)).flagged == ()
