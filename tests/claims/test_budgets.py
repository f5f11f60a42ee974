"""Whatever is done with a store that has a budget, its models claim that budget, once."""

from __future__ import annotations

import shutil

import pytest

from tests.claims.lives import PLAN, Teller, begin, train_from
from tests.plans import uls_plan
from tests.sweeping.launch import request
from userdp.accounting.filters import RenyiFilter
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.lines import OpenBudget
from userdp.ledger.store_ledger import new_id
from userdp.sweeping.runs import run_sweep

FILTER = RenyiFilter.opened(epsilon=20.0, delta=1e-5)


@pytest.fixture
def filtered(store):
    StoreLedger(store.path).append(OpenBudget(run_id=new_id(), filter=FILTER))
    return store


def test_a_model_on_top_of_a_model_of_the_same_store_claims_the_budget_once(filtered, tmp_path):
    tell, first = Teller(), begin(filtered, tmp_path / "first")
    status, second = train_from(tell, filtered.path, tmp_path / "second", first / "model")
    assert status == 0
    assert tell.epsilon(second) == tell.epsilon(filtered.path) == (20.0, 1e-5)
    assert tell("verify", second)[0] == 0


def test_a_model_of_another_store_is_paid_beside_the_budget(prepared, filtered, tmp_path):
    """The filter counts what its own ledger is charged with, and knows no other."""
    tell = Teller()
    base = begin(UserStore.open(shutil.copytree(prepared, tmp_path / "other")), tmp_path / "base")
    status, run = train_from(tell, filtered.path, tmp_path / "run", base / "model")
    assert status == 0
    assert tell.epsilon(run)[0] == pytest.approx(20.0 + PLAN.guarantee().epsilon)
    assert tell.epsilon(filtered.path)[0] == pytest.approx(20.0 + PLAN.guarantee().epsilon)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["private-selection", "composition"])
def test_the_winner_of_a_sweep_claims_the_budget(filtered, tmp_path, mode):
    tell, out = Teller(), tmp_path / "sweep"
    run_sweep(filtered, out, request(filtered, mode, plan=uls_plan(steps=2), epsilon=6.0))
    spent = FILTER.spent(StoreLedger(filtered.path).history().costs(FILTER).values())
    assert 0 < spent < FILTER.capacity
    assert tell.epsilon(out / "winner") == (20.0, 1e-5)
    assert tell("verify", out / "winner")[0] == 0
