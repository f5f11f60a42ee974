"""The preset's learning rate is the one that the grid's rule takes, by the rows of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import recipe
from benchmarks.rows import whole_rows
from userdp.plans.preset import preset

ROWS = Path(__file__).parents[2] / "docs/results/recipe.jsonl"


def test_the_preset_has_the_setting_that_the_rule_takes() -> None:
    cells = recipe.gains_of(whole_rows(ROWS))
    chosen = preset(epsilon=4, population=20_000)
    assert f"constant {chosen.learning_rate:g}" == recipe.chosen_setting(cells)
    assert recipe.table(cells) in ROWS.with_suffix(".md").read_text("utf-8"), "of these rows"


def test_a_cell_counts_once_every_rate_was_run_in_it() -> None:
    """By hand: regrets 0, 0.1, 0.3 in the whole cell; the other has no best rate yet."""
    low, middle, high = recipe.RATES
    whole = {low: 0.5, middle: 0.4, high: 0.2, "constant 0.0005": 0.6}
    cells = {("commits", 4, 2000): whole, ("commits", 8, 2000): {low: 0.1, high: 0.9}}
    found = recipe.mean_regrets(cells)
    assert {name: round(mean, 9) for name, (mean, _) in found.items()} == pytest.approx(
        {low: 0, middle: 0.1, high: 0.3, "constant 0.0005": -0.1}
    )
    assert {count for _, count in found.values()} == {1}


def test_the_grid_has_at_most_60_runs_and_none_twice() -> None:
    jobs = [str(job) for job in recipe.jobs()]
    assert len(jobs) == len(set(jobs)) <= 60
