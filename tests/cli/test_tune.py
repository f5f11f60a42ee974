"""`userdp tune` from outside; what it refuses is in mistakes.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.claims.lives import SHAPE
from tests.plans import els_plan, uls_plan
from tests.training.toy import toy_store
from userdp.sweeping.request import grid
from userdp.training.config import OptimizerName, TrainConfig

NEW = ("--set", "learning.model=new", *SHAPE)


@pytest.fixture
def place(tmp_path) -> Path:
    toy_store(tmp_path)
    uls_plan(population=40, cohort_size=8).save(tmp_path / "plan.json")
    els_plan().save(tmp_path / "els.json")
    return tmp_path


def test_rates_and_optimizers_that_are_tried_have_the_schedule_they_have_by_themselves():
    """By default a rate follows the gradients; one that is given is constant, and SGD has none."""

    def tried(**axes):
        return [one.config for one in grid([uls_plan()], TrainConfig(), axes=axes)]

    rates = [0.1, 0.2]
    assert tried(learning_rate=rates) == [TrainConfig(learning_rate=rate) for rate in rates]
    names = [OptimizerName.ADAMW, OptimizerName.SGD]
    assert tried(optimizer=names) == [TrainConfig(optimizer=name) for name in names]


@pytest.mark.slow
def test_methods_are_compared_by_their_plans_and_the_table_is_shown(place, userdp):
    command = ("tune", place / "store", "--out", place / "sweep")
    plans = ("--plan", place / "plan.json", place / "els.json")
    assert userdp(*command, *plans, "--tuning", "non-private", *NEW)[0] == 0
    status, shown, _ = userdp(*command, "--resume")
    assert status == 0
    for words in ("Operator-only", "ULS", "ELS"):
        assert words in shown
    result = json.loads(userdp(*command, "--resume", "--json")[1])
    assert {trial["algorithm"] for trial in result["trials"]} == {"ULS", "ELS"}
    assert result["settings"]["algorithm"] == result["trials"][0]["algorithm"]


@pytest.mark.slow
def test_a_budget_stands_in_place_of_a_plan(place, userdp):
    budget = ("--epsilon", 8, "--population", 200, "--delta", 0.001, "--tuning", "non-private")
    command = ("tune", place / "store", "--out", place / "sweep", "--json")
    status, out, _ = userdp(*command, *budget, "--l2-clip-norm", "0.1", "0.2", *NEW)
    assert status == 0
    assert 7.9 < json.loads(out)["epsilon"] <= 8
    assert json.loads(out)["settings"]["learning_rate"] == 0.002
