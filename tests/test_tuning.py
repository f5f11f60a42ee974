"""What the winner of a tuning claims."""

import dataclasses
import json
import math

import pytest

from tests.plans import changed_plan, els_plan, uls_plan
from tests.speed import fast_then_slow
from userdp.accounting import Accountant, epsilon_by
from userdp.accounting.private_selection import PoissonNumber, TruncatedNegativeBinomial
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.plans import FixedGrid, PrivateSelection
from userdp.plans.tuning_price import Tuning, divided, selected

LAW = TruncatedNegativeBinomial.of_mean(5, eta=0.0)


def test_a_fixed_grid_is_the_sum_of_its_runs_and_scores():
    plans = (uls_plan(), uls_plan(l2_clip_norm=1.0), els_plan())
    grid = FixedGrid(plans=plans, score_epsilon=0.1)
    found = grid.guarantee()
    assert found.epsilon == pytest.approx(sum(p.guarantee().epsilon for p in plans) + 0.3)
    assert found.delta == pytest.approx(3e-5)
    assert grid.guarantee(delta=1e-6).delta == pytest.approx(1e-6)
    assert grid.guarantee(delta=1e-6).epsilon > found.epsilon


@pytest.mark.slow
def test_a_budget_is_divided_before_the_first_run():
    plans = (uls_plan(), uls_plan(l2_clip_norm=1.0), els_plan())
    grid = divided(plans, epsilon=3.0, delta=1e-5, score_epsilon=0.1)
    found = grid.guarantee()
    assert 2.99 < found.epsilon <= 3.0
    assert found.delta <= 1e-5
    assert grid.plans[0].noise == grid.plans[1].noise
    with pytest.raises(UseError, match="nothing is left"):
        divided(plans, epsilon=0.3, delta=1e-5, score_epsilon=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "plans"),
    fast_then_slow([(PoissonNumber(mu=2.0), (uls_plan(),)), (LAW, (uls_plan(), els_plan()))]),
    ids=["poisson", "negative binomial"],
)
def test_a_private_selection_meets_its_budget_with_about_the_least_noise(law, plans):
    chosen = selected(plans, epsilon=4.0, delta=1e-5, score_epsilon=0.1, repetitions=law)
    assert chosen.guarantee().epsilon <= 4.0
    less = tuple(
        changed_plan(plan, noise_multiplier=0.97 * plan.noise.multiplier) for plan in chosen.plans
    )
    assert dataclasses.replace(chosen, plans=less).guarantee().epsilon > 4.0
    one = chosen.plans[0].mechanism
    assert chosen.guarantee().epsilon > one.epsilon(1e-5).upper, "choosing is not free"


def test_what_cannot_be_claimed_is_refused():
    with pytest.raises(UseError, match="whatever the noise"):
        selected((uls_plan(),), epsilon=0.1, delta=1e-5, score_epsilon=0.1, repetitions=LAW)
    lifted = changed_plan(els_plan(), accountant=Accountant.GROUP_PRIVACY)
    for plan in (uls_plan(unsafe_shuffle=True), lifted):
        with pytest.raises(UseError, match="has no claim"):
            FixedGrid(plans=(plan,), score_epsilon=0.1)
    with pytest.raises(UseError, match="at least one plan"):
        FixedGrid(plans=(), score_epsilon=0.1)
    with pytest.raises(UseError, match="score_epsilon"):
        FixedGrid(plans=(uls_plan(),), score_epsilon=math.nan)
    with pytest.raises(UseError, match="one target delta"):
        PrivateSelection(
            plans=(uls_plan(), uls_plan(target_delta=1e-6)), score_epsilon=0.1, repetitions=LAW
        )


def test_a_tuning_survives_a_ledger():
    plans = (uls_plan(), els_plan())
    for tuning in (
        FixedGrid(plans=plans, score_epsilon=0.1),
        PrivateSelection(plans=plans, score_epsilon=0.1, repetitions=LAW),
        PrivateSelection(plans=plans, score_epsilon=0.1, repetitions=PoissonNumber(mu=2.0)),
    ):
        assert decode(Tuning, json.loads(json.dumps(encode(tuning))), what="it") == tuning


def test_invariant_8_twin_a_winner_priced_as_one_run_is_caught():
    """The claim of a winner is above that of its own run and score, by RDP, at every delta."""
    plan = uls_plan()
    chosen = PrivateSelection(plans=(plan,), score_epsilon=0.1, repetitions=LAW)
    for delta in (1e-4, 1e-6, 1e-9):
        alone = epsilon_by(Accountant.RDP, plan.mechanism, delta).upper
        assert chosen.guarantee(delta=delta).epsilon > alone + 0.1
