"""Adaptive clipping costs what the plan says: sum and count together, integrated over the plane.

The oracle integrates the hockey stick of the worst pair over the plane, with nothing of ours but
the plan's numbers. The pair: a user with k drawn units moves the sum by k C_t and the count by k/2.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tests.plans import changed_plan, els_plan, uls_plan
from userdp.core.errors import UseError
from userdp.noise.clip_forms import FARTHEST, AdaptiveClipping, ClipForm
from userdp.noise.gaussian import sum_noise_multiplier
from userdp.plans import Plan

COUNT_NOISE = 1.5
ADAPTIVE = AdaptiveClipping(count_noise_std=COUNT_NOISE)


def one_step(make_plan, **changes) -> Plan:
    values = {"steps": 1, "noise_multiplier": 1.2, "population": 40, "group_size": 3}
    size = "cohort_size" if make_plan is uls_plan else "batch_size"
    return changed_plan(make_plan(**{**values, size: 20, **changes}), adaptive=ADAPTIVE)


def exact_delta(
    epsilon: float, *, held: int, probability: float, sum_std: float, count_std: float
) -> float:
    """max of both directions of H_{e^ε} between "the user is there" and "is not", in the plane."""
    drawn = np.arange(held + 1)
    weights = stats.binom.pmf(drawn, held, probability)
    x = np.linspace(-9 * sum_std, held + 9 * sum_std, 1201)
    y = np.linspace(-9 * count_std, held / 2 + 9 * count_std, 1201)
    on_x = stats.norm.pdf(x[None] - drawn[:, None], scale=sum_std)
    on_y = stats.norm.pdf(y[None] - drawn[:, None] / 2, scale=count_std)
    there = np.einsum("k,kx,ky->xy", weights, on_x, on_y)
    absent, area = np.outer(on_x[0], on_y[0]), (x[1] - x[0]) * (y[1] - y[0])
    factor = math.exp(epsilon)
    both = [(there - factor * absent), (absent - factor * there)]
    return max(float(np.clip(excess, 0, None).sum() * area) for excess in both)


def delta_of(plan: Plan, epsilon: float, *, sum_multiplier: float | None = None) -> float:
    """The true δ of one step of the plan at ``epsilon``, C_t = 1."""
    return exact_delta(
        epsilon,
        held=1 if plan.algorithm == "ULS" else plan.sampling.group_size,
        probability=plan.sampling.sampling_probability,
        sum_std=sum_multiplier or plan.sum_noise_multiplier,
        count_std=plan.count_noise_std,
    )


PLANS = [one_step(uls_plan), one_step(els_plan), one_step(els_plan, group_size=8)]
IDS = ["ULS", "ELS of 3", "ELS of 8"]


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
@pytest.mark.parametrize("plan", PLANS, ids=IDS)
@pytest.mark.pitfall(number=6)
def test_invariant_8_the_claim_covers_sum_and_count_together_and_is_tight(plan, delta):
    assert delta_of(plan, plan.guarantee(delta=delta).epsilon) == pytest.approx(delta, rel=0.01)


@pytest.mark.parametrize("plan", PLANS, ids=IDS)
def test_invariant_8_twin_count_noise_forgotten_in_the_accounting_is_caught(plan):
    """The sum keeps the noise of a plan without a count, and the count is released all the same."""
    epsilon = plan.guarantee(delta=1e-4).epsilon
    assert delta_of(plan, epsilon, sum_multiplier=plan.noise.multiplier) > 1.2e-4


@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.3, 1.0, 7.0, 1e4])
@pytest.mark.parametrize("ratio", [0.56, 0.8, 2.5, 100.0, 1e6])
def test_the_sums_noise_never_leaves_the_pair_below_the_plan(noise_multiplier, ratio):
    count_noise = ratio * noise_multiplier
    alone = sum_noise_multiplier(noise_multiplier=noise_multiplier, count_noise_std=count_noise)
    together = 1 / math.hypot(1 / alone, 1 / (2 * count_noise))
    assert noise_multiplier <= together <= noise_multiplier * (1 + 1e-9)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf, 0.5, 0.55])
def test_a_count_that_would_spend_the_budget_alone_is_refused(bad):
    with pytest.raises(UseError):
        changed_plan(uls_plan(noise_multiplier=1.0), adaptive=AdaptiveClipping(count_noise_std=bad))


@pytest.mark.parametrize("name", ["quantile", "learning_rate"])
@pytest.mark.parametrize("bad", [0.0, math.nan, 1.5, -1.0])
def test_constants_out_of_range_are_refused(name, bad):
    with pytest.raises(UseError):
        AdaptiveClipping(**{name: bad})


def test_automatic_clipping_has_no_threshold_to_adapt():
    with pytest.raises(UseError, match="no threshold"):
        changed_plan(uls_plan(), clip_form=ClipForm.AUTOMATIC, adaptive=AdaptiveClipping())


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("start", [0.01, 1.0, 100.0])
def test_the_clip_norm_finds_the_quantile_from_far_away(quantile, start):
    norms = np.random.default_rng(0).lognormal(size=2000)
    adaptive, found = AdaptiveClipping(quantile=quantile), start
    for _ in range(400):
        count = float((norms <= found).sum() - len(norms) / 2)
        found = adaptive.next_clip_norm(
            l2_clip_norm=found, noisy_count=count, denominator=len(norms), start=start
        )
    assert float((norms <= found).mean()) == pytest.approx(quantile, abs=0.02)


@pytest.mark.parametrize("count", [1.5, 4.0, 1e6])
def test_one_step_moves_the_clip_norm_as_far_as_if_all_or_none_were_clipped(count):

    def after(noisy_count):
        return AdaptiveClipping(learning_rate=0.5, quantile=0.25).next_clip_norm(
            l2_clip_norm=2.0, noisy_count=noisy_count, denominator=3.0, start=2.0
        )

    assert after(count) == pytest.approx(2.0 * math.exp(-0.5 * 0.75))
    assert after(-count) == pytest.approx(2.0 * math.exp(0.5 * 0.25))


@pytest.mark.parametrize("count", [math.inf, -math.inf, 1e300, -1e300])
def test_the_clip_norm_stays_within_public_bounds_whatever_is_released(count):
    adaptive, clip = AdaptiveClipping(learning_rate=1.0), 2.0
    for _ in range(100):
        clip = adaptive.next_clip_norm(
            l2_clip_norm=clip, noisy_count=count, denominator=3.0, start=2.0
        )
    assert clip == (2.0 / FARTHEST if count > 0 else 2.0 * FARTHEST)
