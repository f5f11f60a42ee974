"""`userdp store budget` and `settle` from outside: a budget is fixed once, spent and given back."""

from __future__ import annotations

import json

import pytest

from tests.claims.lives import PLAN, Teller, begin
from tests.ledgers import query, reserve
from userdp.core.errors import UseError
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
    assert status == 2
    assert "already" in err
    assert "for the store's life" in err


def test_without_a_budget_the_ledger_is_shown(store, userdp):
    reserve(StoreLedger(store.path), "run", PLAN)
    status, printed, _ = userdp("store", "budget", store.path)
    assert status == 0
    for words in ("No total was fixed", "6 of 6 steps (ULS)", "2.4681"):
        assert words in printed


def test_as_many_more_runs_fit_a_budget_as_are_told(filtered, tell, userdp):
    ledger = StoreLedger(filtered.path)
    reserve(ledger, "one", PLAN, logged=False)
    query(ledger, "q", name="users", pure_epsilon=0.5)
    values = tell.done("store", "budget", filtered.path)
    assert values["spent"] == pytest.approx(sum(one["share"] for one in values["lines"]), rel=1e-9)
    assert values["claim"]["epsilon"] == 8.0
    more = values["buys"]["runs"]
    assert more == int((1 - values["spent"]) / values["lines"][0]["share"])
    for name in range(more):
        reserve(ledger, f"like it {name}", PLAN, logged=False)
    with pytest.raises(UseError, match="beyond its budget"):
        reserve(ledger, "one too many", PLAN, logged=False)
    status, printed, _ = userdp("store", "budget", filtered.path)
    assert (status, tell.done("store", "budget", filtered.path)["buys"]["runs"]) == (0, 0)
    assert "6 of 6 steps (ULS)" in printed


def test_a_run_without_an_exact_log_gives_its_steps_back(filtered, tmp_path, tell, userdp):
    run = begin(filtered, tmp_path / "run", stop=2, checkpoint_every=1, no_exact_log=True)
    kinds = [json.loads(line)["kind"] for line in (run / "operator.jsonl").open()]
    assert kinds == ["machine"], "no exact number was kept"
    whole = tell.done("store", "budget", filtered.path)["spent"]
    values = tell.done("store", "settle", run)
    assert (values["steps_attempted"], values["steps_charged"]) == (2, 2)
    assert values["why_whole_plan"] is None
    left = tell.done("store", "budget", filtered.path)
    assert left["spent"] == pytest.approx(whole / 3)
    assert left["lines"][0]["state"] == "settled early"
    assert tell("verify", run)[0] == 0
    assert tell("train", filtered.path, "--out", run, "--resume")[0] == 2, "it is closed"
    for command in (("export", run, "--out", tmp_path / "shared"), ("generate", run)):
        status, _, err = userdp(*command)
        assert status == 2
        assert "settled before its end: it has no model" in err
        assert "--resume" not in err
    status, printed, _ = userdp("store", "settle", run)
    assert status == 0, "asked again, the same is said"
    assert "steps charged" in printed
