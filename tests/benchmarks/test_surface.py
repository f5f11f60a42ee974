"""The surface's book-keeping: what is run, what is skipped, and how strategies are judged."""

from __future__ import annotations

import json

import pytest

from benchmarks import group_privacy, surface
from papers.studies.runs import append_row, missing, name_of, read_rows
from userdp.accounting import Accountant


def row(g: int, m: int, loss: float, run: str, *, rate: float = 0.1, epsilon: float = 4.0) -> dict:
    key = {"epsilon": epsilon, "g": g, "m": m, "rate": rate, "run": run}
    return {"key": key, "loss": loss}


def test_a_budget_s_cells_spend_it_and_have_at_least_one_user() -> None:
    assert surface.cells(16) == [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)]
    assert all(g * m == 256 for g, m in surface.cells(256))


def test_a_row_that_was_written_is_not_run_again_and_a_cut_line_is(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    plan = {"norms": {"1": 2.0}, "noise": {"4.0": {"16": 1.5}}}

    def job(run: str):
        return surface.job(plan, tmp_path, epsilon=4.0, g=1, m=16, rate=0.1, run=run)

    jobs = [job("measure-0"), job("measure-1")]
    append_row(path, {"key": dict(jobs[0].key), "loss": 5.0})
    with path.open("a") as file:
        file.write(json.dumps({"key": dict(jobs[1].key), "loss": 5.0})[:-9])
    assert [name_of(j.key) for j in missing(jobs, read_rows(path))] == [name_of(jobs[1].key)]
    assert jobs[0].plan.clip.l2_norm == 2.0
    assert jobs[0].plan.noise.multiplier == 1.5
    assert jobs[0].plan.denominator == pytest.approx(16)


def test_the_measured_rate_is_the_best_of_the_tuning_runs_alone() -> None:
    rows = [
        row(1, 16, 5.0, "tune", rate=0.1),
        row(1, 16, 4.0, "tune", rate=0.2),
        row(1, 16, 3.0, "measure-0", rate=0.1),
        row(1, 16, 2.0, "tune", rate=0.3, epsilon=1.0),
    ]
    assert surface.best_rate(rows, 4.0, 1, 16) == 0.2


def test_strategies_are_judged_by_their_distance_from_the_best_cell() -> None:
    """Losses by hand: at B = 16 the best is (2, 8), at B = 32 (1, 32)."""
    losses = {(1, 16): 5.1, (2, 8): 5.0, (4, 4): 5.4, (8, 2): 5.5, (16, 1): 5.6}
    losses |= {(1, 32): 4.0, (2, 16): 4.2, (4, 8): 4.4, (8, 4): 4.6, (16, 2): 4.8}
    rows = [row(g, m, loss, f"measure-{n}") for (g, m), loss in losses.items() for n in (0, 1, 2)]
    chosen = {
        "ours": [2, 8],
        "estimate-and-double": [1, 16],
        "max cohort": [1, 16],
        "max group": [16, 1],
    }
    larger = {
        "ours": [2, 16],
        "estimate-and-double": [1, 32],
        "max cohort": [1, 32],
        "max group": [16, 2],
    }
    plan = {"choices": {"4.0": {"16": chosen, "32": larger}}}
    first, second = surface.summary(plan, rows, 4.0)
    assert first["best"] == (2, 8)
    assert first["excess"]["ours"] == 0.0
    assert first["excess"]["max group"] == pytest.approx(0.6)
    assert first["excess"]["random"] == pytest.approx(0.32)
    assert first["excess"]["greedy oracle"] == pytest.approx(0.1)  # it starts at (1, 16)
    assert first["ours_within_1_percent"]
    assert first["ours_no_worse_than_estimate_and_double"]
    assert second["best"] == (1, 32)
    assert second["excess"]["greedy oracle"] == 0.0
    assert not second["ours_within_1_percent"]
    assert not second["ours_no_worse_than_estimate_and_double"]
    assert not second["ours_inside_interval"]
    assert surface.table([first, second]).count("\n") == 3


def test_choices_are_fixed_once(tmp_path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(SystemExit, match="fixed once"):
        surface.make_plan(tmp_path, path)


@pytest.mark.slow
def test_group_privacy_s_four_methods_spend_the_same_and_differ_in_noise() -> None:
    norms = {"8": 4.0, "16": 3.0}
    plans = {m: group_privacy.plan_of(m, 3.0, norms, 6.0) for m in group_privacy.METHODS}
    for name, plan in plans.items():
        assert 2.99 < plan.guarantee().epsilon <= 3.0
        expected = plan.denominator * (group_privacy.EXAMPLES_PER_USER if name == "ULS" else 1)
        assert expected == pytest.approx(group_privacy.BATCH_SIZE)
    assert plans["ELS"].noise.multiplier < plans["GP (best)"].noise.multiplier
    assert plans["GP (best)"].noise.multiplier < plans["GP (Vadhan)"].noise.multiplier
    assert plans["GP (best)"].accountant is Accountant.GROUP_PRIVACY
    assert plans["ULS"].clip.l2_norm == 3.75
