"""A δ that says little is refused before training, everywhere, unless it is asked for by name."""

from __future__ import annotations

import math
import warnings

import pytest

from tests.plans import els_plan, uls_plan
from tests.training.toy import private_run, sgd, toy_model, toy_store
from userdp.core.errors import UseError
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.plans.small_delta import (
    DeltaSize,
    plan_with_small_delta,
    rule_of,
    size_of,
)
from userdp.training.private_run import make_private

LARGE, MIDDLE = 0.01, 0.008  # of 100: 1/n and above n^-1.1 = 0.0063


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> UserStore:
    return toy_store(tmp_path_factory.mktemp("small-delta"))


@pytest.mark.parametrize("n", [2, 3, 49, 100, 1000, 10**6, 10**12 - 1])
def test_one_over_n_is_too_large_and_the_next_number_below_is_not(n: int) -> None:
    assert size_of(1 / n, n) is DeltaSize.TOO_LARGE
    assert size_of(1 / n * (1 - 1e-9), n) is DeltaSize.ABOVE_RULE
    assert size_of(rule_of(n) * (1 - 1e-12), n) is DeltaSize.WITHIN_RULE
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(UseError):
            size_of(delta, n)


def test_examples_stand_for_users_where_no_users_are_declared() -> None:
    """Below 1/examples is below 1/users; a number of users, if it is declared, decides."""
    plan = els_plan(target_delta=1 / 400)
    with pytest.raises(UseError, match="400 examples"):
        plan_with_small_delta(plan)
    assert "above the rule" in str(plan_with_small_delta(plan, users=300))
    assert plan_with_small_delta(plan, users=100) is None
    with pytest.raises(UseError, match="500 users"):
        plan_with_small_delta(plan, users=500)


def test_make_private_refuses_before_it_charges_and_warns_in_between(store, tmp_path) -> None:
    model, large = toy_model(store), uls_plan(target_delta=LARGE)
    with pytest.raises(UseError, match="not below 1/n"):
        make_private(model, sgd(model), store, large, out=tmp_path / "a")
    assert StoreLedger(store.path).history().charges == {}
    with (
        pytest.warns(UserWarning, match="above the rule"),
        make_private(model, sgd(model), store, uls_plan(target_delta=MIDDLE), out=tmp_path / "b"),
    ):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how in ({"allow_large_delta": True}, {"resume": True}):
            private_run(model, sgd(model), store, large, out=tmp_path / "c", **how).close()
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "d").close()
