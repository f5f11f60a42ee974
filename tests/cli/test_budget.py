"""`userdp store budget` and `settle` from outside: fixed once, and ended for good."""

from __future__ import annotations

import json

import pytest

from tests.claims.lives import PLAN, Teller, begin
from tests.ledgers import query, reserve
from userdp.ledger import StoreLedger

BUDGET = ("--epsilon", 8, "--delta", 1e-5)


@pytest.fixture
def tell():
    return Teller()


@pytest.fixture
def filtered(store, tell):
    """A store with a budget of ε = 8."""
    tell.done("store", "budget", store.path, *BUDGET)
    return store


def test_a_budget_is_opened_once_and_before_anything_else(store, tell, userdp):
    values = tell.done("store", "budget", store.path, *BUDGET)
    assert (values["kind"], values["epsilon"], values["spent"]) == ("filter", 8.0, 0.0)
    assert 3 < values["order"] < 5
    status, _, err = userdp("store", "budget", store.path, "--epsilon", 9, "--delta", 1e-5)
    assert (status, "already" in err, "for the store's life" in err) == (2, True, True)


def test_without_a_budget_the_ledger_is_shown(store, userdp):
    reserve(StoreLedger(store.path), "run", PLAN)
    _, printed, _ = userdp("store", "budget", store.path)
    for words in ("No total was fixed", "training (ULS, 6 steps)", "2.4681"):
        assert words in printed


def test_shares_of_a_budget_add_up_and_what_is_left_is_told(filtered, tell, userdp):
    """That as many more runs fit as are told is asked in tests/ledger/test_budget.py."""
    reserve(StoreLedger(filtered.path), "one", PLAN, logged=False)
    query(StoreLedger(filtered.path), "q", name="users", pure_epsilon=0.5)
    values = tell.done("store", "budget", filtered.path)
    assert values["spent"] == pytest.approx(sum(one["share"] for one in values["lines"]), rel=1e-9)
    assert values["claim"]["epsilon"] == 8.0
    assert values["buys"]["runs"] == int((1 - values["spent"]) / values["lines"][0]["share"])
    assert "training (ULS, 6 steps)" in userdp("store", "budget", filtered.path)[1]


def test_a_run_that_is_settled_costs_its_whole_plan_and_is_closed(filtered, tmp_path, tell, userdp):
    run = begin(filtered, tmp_path / "run", stop=2, checkpoint_every=1, no_exact_log=True)
    kinds = [json.loads(line)["kind"] for line in (run / "operator.jsonl").open()]
    assert kinds == ["machine"], "no exact number was kept"
    whole = tell.done("store", "budget", filtered.path)["spent"]
    values = tell.done("store", "settle", run)
    assert (values["steps_attempted"], values["steps_planned"]) == (2, 6)
    left = tell.done("store", "budget", filtered.path)
    assert left["spent"] == whole
    assert left["lines"][0]["state"] == "settled early"
    assert tell("verify", run)[0] == 0
    assert tell("train", filtered.path, "--out", run, "--resume")[0] == 2, "it is closed"
    for command in (("export", run, "--out", tmp_path / "shared"), ("generate", run)):
        status, _, err = userdp(*command)
        assert status == 2
        assert "has released no model" in err
    status, printed, _ = userdp("store", "settle", run)
    assert (status, "steps planned" in printed) == (0, True), "asked again, the same is said"
