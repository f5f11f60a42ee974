"""One set of weights, one claim: a run that may have been chosen among several says so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import userdp
from tests.claims.lives import PLAN, Teller, begin
from tests.speed import fast_then_slow
from tests.sweeping.launch import request, swept
from tests.training.toy import private_run, sgd, toy_model
from userdp.core.errors import UseError

RATES = (0.001, 0.01, 0.1)


def three_runs(store, folder: Path, **config) -> Path:
    """Three runs that were fixed in advance, each at the price of one; returns the first."""
    for number, rate in enumerate(RATES, start=1):
        begin(store, folder / f"run-{number}", PLAN, learning_rate=rate, **config)
    return folder / "run-1"


def told(run: Path) -> list[str]:
    """The conditions that every printer of a run's claim says, and its export's too."""
    tell, page = Teller(), run.parent / "page.html"
    said = [
        tell.done("account", "--ledger", run)["conditions"],
        tell.done("report", run, "--out", page, "--public", "--overwrite")["runs"][0]["conditions"],
        tell.done("verify", run)["claim"]["conditions"],
    ]
    out = run.parent / f"export-{run.name}"
    said.append(tell.done("export", run, "--out", out)["claim"]["conditions"])
    there = shutil.move(out, out.parent / "elsewhere")
    said.append(tell.done("verify", there)["claim"]["conditions"])
    shutil.rmtree(there)
    assert all(one == said[0] for one in said), said
    return said[0]


def test_the_best_of_three_runs_by_exact_evaluation_is_exported_with_a_condition(store, tmp_path):
    run = three_runs(store, tmp_path)
    Teller().done("evaluate", run, "--store", store.path, "--no-base")
    words = "no model here was chosen among 3 runs over the same people by exact numbers"
    assert told(run) == [f"{words} (evaluate, train)"]
    exported = userdp.export(run, out=tmp_path / "shared")
    assert "userdp tune" in "".join(exported["notes"]), "the way out"
    assert words in (tmp_path / "shared" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_budget_that_was_fixed_beforehand_covers_the_choice_by_releases(store, tmp_path):
    Teller().done("store", "budget", store.path, "--epsilon", 9, "--delta", 1e-5)
    run = three_runs(store, tmp_path, no_exact_log=True)
    assert told(run) == []
    Teller().done("evaluate", run, "--store", store.path, "--no-base")
    assert "3 runs over the same people by exact numbers (evaluate)" in "".join(told(run))


def test_a_run_whose_store_is_elsewhere_says_that_others_are_not_known(store, tmp_path):
    begin(store, tmp_path / "run")
    (tmp_path / "moved").mkdir()
    for name in ("run", "store"):
        shutil.move(tmp_path / name, tmp_path / "moved" / name)
    assert told(tmp_path / "moved" / "run") == [], "moved together, they find each other"
    (tmp_path / "alone").mkdir()
    shutil.move(tmp_path / "moved" / "run", tmp_path / "alone" / "run")
    shutil.rmtree(tmp_path / "moved")
    (condition,) = told(tmp_path / "alone" / "run")
    assert "only their store knows" in condition


@pytest.mark.parametrize("mode", fast_then_slow(["non-private", "composition"], fast=0))
def test_a_trial_of_a_sweep_claims_no_more_than_its_winner(store, tmp_path, mode):
    """The first trial has nothing before it: its ledger alone would claim one run."""
    swept(store, tmp_path / "sweep", request(store, mode))
    trial = tmp_path / "sweep" / "trial-001"
    assert "2 runs over the same people by exact numbers (train)" in "".join(told(trial))
    (tmp_path / "alone").mkdir()
    for name in ("ledger.jsonl", "plan.json", "train.toml", "model"):
        shutil.move(trial / name, tmp_path / "alone" / name)
    said = Teller().done("account", "--ledger", tmp_path / "alone")["conditions"]
    assert said == ["no model here was chosen among the trials of a tuning"], "marked in its ledger"
    said = Teller().done("account", "--ledger", tmp_path / "sweep" / "winner")["conditions"]
    assert bool(said) == (mode == "non-private"), "the price of choosing covers it"
    begin(store, tmp_path / "later")
    said = told(tmp_path / "sweep" / "winner")
    assert any("chosen among" in one for one in said), "a sweep and a run: again a choice of two"
    said = Teller().done("account", "--ledger", store.path)["conditions"]
    assert not any("chosen among" in one for one in said), "a total is of all of them"


def test_a_loop_sees_exact_losses_only_where_it_asks_for_them(store, tmp_path):
    """Whose claim then says so: see `Life.loop`."""
    model = toy_model(store)
    with private_run(model, sgd(model), store, PLAN, out=tmp_path / "run") as private:
        step = next(iter(private))
        with pytest.raises(UseError, match="no 'loss'") as refused:
            step.operator["loss"]
    assert "exact_log=True" in refused.value.hint
