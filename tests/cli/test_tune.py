"""`userdp tune`: what it refuses, before anything is charged or left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ledgers import forget
from tests.plans import els_plan, uls_plan
from tests.training.toy import toy_store
from userdp.cli.app import run as userdp


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    toy_store(folder)
    uls_plan(population=40, cohort_size=8).save(folder / "plan.json")
    els_plan().save(folder / "els.json")
    return folder


NON_PRIVATE = ["--tuning", "non-private"]
SELECTION = ["--tuning", "private-selection"]
NEW = [
    word
    for one in ("model=new", "layers=1", "width=16", "heads=2")
    for word in ("--set", f"learning.{one}")
]
GRID = ["--learning-rate", "0.001", "0.01"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--tuning"),
        ([*NON_PRIVATE, "--learning-rate", "0.01", "0.01"], "alike"),
        ([*NON_PRIVATE, "--epsilon", "3"], "exact"),
        ([*NON_PRIVATE, "--mean-trials", "3"], "random number"),
        (["--tuning", "composition", "--mean-trials", "3"], "random number"),
        (["--tuning", "composition", *GRID, "--epsilon", "1", "--score-epsilon", "0.6"], "nothing"),
        ([*SELECTION, *GRID], "--mean-trials"),
        ([*SELECTION, *GRID, "--distribution", "geometric"], "--mean-trials"),
        ([*SELECTION, *GRID, "--distribution", "fixed"], "K times"),
        ([*SELECTION, *GRID, "--mean-trials", "1"], "greater than 1"),
        ([*SELECTION, *GRID, "--mean-trials", "8", "--score-epsilon", "5"], "whatever the noise"),
        ([*NON_PRIVATE, "--set", "learning.model=bundled"], "different tokenizers"),
        ([*NON_PRIVATE, "--population", "100"], "needs a plan"),
        ([*NON_PRIVATE, "--learning-rate", "nan"], "--learning-rate must be"),
        (["--resume"], "would be ignored"),
    ],
)
def test_bad_use_is_one_error_and_leaves_nothing(place, capsys, options, message):
    plan = ["--plan", str(place / "plan.json")]
    if "learning.model=bundled" not in options:
        options = [*options, *([] if "--resume" in options else NEW)]
    out = place / "sweep"
    assert userdp(["tune", str(place / "store"), "--out", str(out), *plan, *options]) == 2
    error = capsys.readouterr().err
    assert error.count("error:") == 1
    assert message in error
    assert not out.exists()
    assert not (place / "store" / "ledger.jsonl").exists()


def test_nothing_to_resume_and_no_plan_are_refused(place, capsys):
    command = ["tune", str(place / "store"), "--out", str(place / "sweep")]
    assert userdp([*command, "--resume"]) == 2
    assert "no tuning" in capsys.readouterr().err
    assert userdp([*command, *NON_PRIVATE]) == 2
    assert "needs a plan" in capsys.readouterr().err
    assert not (place / "sweep").exists()


@pytest.mark.slow
def test_methods_are_compared_by_their_plans_and_the_table_is_shown(place, tmp_path, capsys):
    command = ["tune", str(place / "store"), "--out", str(tmp_path / "sweep")]
    options = ["--plan", str(place / "plan.json"), str(place / "els.json"), *NON_PRIVATE]
    assert userdp([*command, *options, *NEW]) == 0
    capsys.readouterr()
    assert userdp([*command, "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "Operator-only" in shown
    assert "ULS" in shown
    assert "ELS" in shown
    assert userdp([*command, "--resume", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {trial["algorithm"] for trial in result["trials"]} == {"ULS", "ELS"}
    assert result["settings"]["algorithm"] == result["trials"][0]["algorithm"]
    forget(place / "store")


@pytest.mark.slow
def test_a_budget_stands_in_place_of_a_plan(place, tmp_path, capsys):
    budget = ["--epsilon", "8", "--population", "200", "--delta", "0.001", *NON_PRIVATE]
    command = ["tune", str(place / "store"), "--out", str(tmp_path / "sweep"), "--json"]
    assert userdp([*command, *budget, "--l2-clip-norm", "0.1", "0.2", *NEW]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 7.9 < result["epsilon"] <= 8
    assert result["settings"]["learning_rate"] == 0.002
    forget(place / "store")
