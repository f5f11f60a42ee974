"""The grid of the preset's constants: its design, its rows, and the update that it simulates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import recipe
from benchmarks.recipe import Setting
from benchmarks.rows import whole_rows
from tests.training.toy import toy_model, toy_store
from userdp.data.splits import Split
from userdp.plans.preset_defaults import preset
from userdp.plans.resolve_plan import PlanFields, resolve

ROOT = Path(__file__).parents[2]
ROWS = list(whole_rows(ROOT / recipe.ROWS))


def test_a_block_is_the_product_of_its_lists_and_cases(tmp_path: Path) -> None:
    design = tmp_path / "design.toml"
    design.write_text(
        '[[runs]]\nquestion = "q"\ntext = ["a", "b"]\ncases = [{rate = 1.0}, {rate = 2, rank = 8}]'
    )
    found = [(one.text, one.rate, one.rank) for one in recipe.settings(design)]
    assert found == [("a", 1, 0), ("b", 1, 0), ("a", 2, 8), ("b", 2, 8)]


def test_the_design_has_no_run_twice_and_each_row_is_of_it_or_of_an_earlier_one() -> None:
    keys = [json.dumps(one.key) for one in recipe.settings()]
    assert len(keys) == len(set(keys))
    questions = {one.question for one in recipe.settings()}
    assert {row["key"]["question"] for row in ROWS} <= questions | recipe.EARLIER


def test_a_budget_says_the_noise_of_the_presets_own_plan() -> None:
    chosen = preset(epsilon=4, population=6_000)
    plan, _ = resolve(chosen=PlanFields(epsilon=4, population=6_000))
    setting = Setting(
        question="",
        text="",
        rate=1,
        epsilon=4,
        population=6_000,
        cohort=chosen.cohort_size,
        steps=chosen.steps,
    )
    assert setting.noise_ratio == plan.sum_noise_multiplier / plan.denominator


def test_the_page_has_the_tables_of_the_rows_and_each_cell_one_of_the_default() -> None:
    """The numbers of the page are those of the constants that users get."""
    page, tables = (ROOT / "docs/results/recipe.md").read_text("utf-8"), dict(recipe.tables(ROWS))
    cells = recipe.cells(ROWS)
    assert len(cells.splitlines()) == 2 + 12
    for table in (cells, *(tables[question] for question in ("rate", "trust", "little noise"))):
        assert table in page


@pytest.mark.parametrize("broken", [False, True])
def test_the_simulated_step_is_the_clipped_mean_and_the_noise(
    tmp_path: Path, *, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain descent without momentum to see it: one step moves by rate times noise, C and r."""
    store = toy_store(tmp_path)
    setting = Setting(question="", text="", ratio=50.0, rate=1.0, steps=1, users=2, clip=0.01)
    if broken:
        setting = replace(setting, ratio=25.0)
    moved = []

    def seen(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            moved.extend(p.grad.flatten().numpy() for p in group["params"])

    monkeypatch.setattr(torch.optim.AdamW, "step", seen)
    recipe.train(store.split(Split.TRAIN), toy_model(store), setting)
    assert (float(np.concatenate(moved).std()) == pytest.approx(0.5, rel=0.05)) == (not broken)
