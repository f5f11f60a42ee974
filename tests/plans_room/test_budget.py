"""The split of a budget: basic composition of what was fixed beforehand, and nothing else."""

import math

import pytest

from userdp.errors import UseError
from userdp.plans.proposal import PrivacyBudget, Release


def release(epsilon: float) -> Release:
    return Release(name="median", query_id=f"query-{epsilon}", epsilon=epsilon)


def require_within(budget: PrivacyBudget) -> None:
    """The checker: exact sums of the parts stay within the total."""
    parts = [r.epsilon for r in budget.releases] + [budget.training_epsilon]
    assert math.fsum(parts) <= budget.epsilon


@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 4.0, 7.9])
@pytest.mark.parametrize("costs", [(), (0.01,), (0.03, 0.02), (1 / 30, 1 / 70, 1 / 90)])
def test_the_parts_never_exceed_the_total(epsilon, costs):
    releases = tuple(release(cost) for cost in costs)
    budget = PrivacyBudget(epsilon=epsilon, delta=1e-6, releases=releases)
    require_within(budget)
    assert 0 < budget.training_epsilon <= epsilon


def test_a_split_that_forgets_a_release_is_caught():
    """The broken twin: training gets the whole budget beside a release."""

    class Forgetful(PrivacyBudget):
        @property
        def training_epsilon(self) -> float:
            return self.epsilon

    forgetful = Forgetful(epsilon=1.0, delta=1e-6, releases=(release(0.1),))
    with pytest.raises(AssertionError):
        require_within(forgetful)


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"delta": 0.0},
        {"delta": math.nan},
        {"releases": (release(1.0),)},
    ],
)
def test_a_budget_that_leaves_nothing_or_means_nothing_is_refused(changes):
    with pytest.raises(UseError):
        PrivacyBudget(**{"epsilon": 1.0, "delta": 1e-6, **changes})
