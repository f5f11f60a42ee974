"""What the accountants share: calibration, the least and most noise."""

from __future__ import annotations

import pytest

from tests.plans import uls_plan
from userdp.accounting import Accountant, binomial_steps
from userdp.accounting.accountants import calibrate, epsilon_by
from userdp.accounting.mechanisms import Mixture
from userdp.core.errors import FailureError

STEPS = binomial_steps(sampling_probability=0.1, noise_multiplier=1.0, steps=3)


def test_equal_mechanisms_are_priced_once(monkeypatch):
    """A store of many runs of few plans is told in several places, and each charge has a price."""
    priced, right = [], Mixture.epsilon
    monkeypatch.setattr(
        Mixture, "epsilon", lambda self, delta: priced.append(self) or right(self, delta)
    )
    plans = [uls_plan(steps=37, noise_multiplier=1.375) for _ in range(20)]
    assert len({plan.guarantee().epsilon for plan in plans}) == 1
    once = len(priced)
    assert once <= 7  # one for each share of delta that is tried
    uls_plan(steps=37, noise_multiplier=1.5).guarantee()
    assert len(priced) > once


@pytest.mark.parametrize("noise", [1e-30, 1e30])
@pytest.mark.parametrize("accountant", list(Accountant), ids=str)
def test_the_least_and_the_most_noise_that_is_accepted_have_a_price(accountant, noise):
    """Squares of them stay numbers; dp-accounting, whose grids do not, says so."""
    if accountant is Accountant.DP_ACCOUNTING:
        pytest.importorskip("dp_accounting")
    steps = binomial_steps(sampling_probability=0.1, noise_multiplier=noise, steps=3)
    if accountant is Accountant.DP_ACCOUNTING:
        with pytest.raises(FailureError, match="cannot price this mechanism"):
            epsilon_by(accountant, steps, 1e-6)
        return
    upper = epsilon_by(accountant, steps, 1e-6).upper
    assert (upper > 1e50) if noise < 1 else (upper < 0.1)


@pytest.mark.parametrize(
    "accountant",
    [
        pytest.param(one, marks=pytest.mark.slow if one is Accountant.DP_ACCOUNTING else [])
        for one in Accountant
    ],
    ids=str,
)
def test_every_accountant_answers_by_its_own_name_and_calibrates_to_the_least_noise(accountant):
    if accountant is Accountant.DP_ACCOUNTING:
        pytest.importorskip("dp_accounting")
    found = epsilon_by(accountant, STEPS, 1e-6)
    assert found.accountant == str(accountant)
    assert found.upper >= epsilon_by(Accountant.CONTOUR, STEPS, 1e-6).lower
    if accountant is not Accountant.DP_ACCOUNTING:
        group = binomial_steps(
            sampling_probability=0.01, group_size=4, noise_multiplier=1.0, steps=100
        )
        least = calibrate(group, target_epsilon=4.0, target_delta=1e-6, accountant=accountant)
        assert epsilon_by(accountant, least, 1e-6).upper <= 4.0
        less = least.with_noise_multiplier(least.noise_multiplier * (1 - 3e-4))
        assert epsilon_by(accountant, less, 1e-6).upper > 4.0
