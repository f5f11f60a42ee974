"""``userdp demo``: a tiny one through the same code, and the constants of the real one."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.plans import changed_plan
from userdp.cli.app import run as userdp
from userdp.cli.output import in_words, show
from userdp.commands import demo
from userdp.core.vocabulary import round_up


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def result(place: Path) -> dict[str, Any]:
    tiny = {"steps": 2, "population": 24, "sampling_probability": 0.2, "noise_multiplier": 1.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PACKAGES", ("jinja2", "markupsafe"))
        patch.setitem(demo.PREPARED, "max_users", 30)
        patch.setitem(demo.PREPARED, "held_out_users", 0.2)
        for name, plan in demo.PLANS.items():
            patch.setitem(demo.PLANS, name, changed_plan(plan, **tiny))
        shape = {"model": "new", "layers": 1, "width": 16, "heads": 2}
        patch.setattr(demo, "CONFIG", replace(demo.CONFIG, **shape))
        return demo.demo(out=place)


@pytest.mark.slow
def test_every_stage_leaves_what_it_says(place: Path, result: dict[str, Any]) -> None:
    assert {path.name for path in place.iterdir()} == {
        "store", "uls", "els", "report.html", "report-public.html", "demo.json"
    }  # fmt: skip
    assert json.loads((place / "demo.json").read_text(encoding="utf-8")) == result
    assert [run["algorithm"] for run in result["runs"]] == ["ULS", "ELS"]
    (source,) = result["sources"]
    versions = source["packages"]
    assert set(versions) == {"jinja2", "markupsafe"}
    assert all(versions.values())


@pytest.mark.slow
def test_the_printed_epsilon_is_what_account_says_of_the_ledger(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for run in result["runs"]:
        assert userdp(["account", "--ledger", run["run"], "--json"]) == 0
        accounted = json.loads(capsys.readouterr().out)
        assert run["epsilon"] == accounted["epsilon"]
        assert {"epsilon", "delta", "unit", "adjacency"} <= run.keys()
    console = Console(width=200, record=True, file=io.StringIO())
    show(in_words(result, "demo"), console=console)
    text = console.export_text()
    for run in result["runs"]:
        assert round_up(run["epsilon"]) in text
        assert f"{run['loss_before']:.5g}" in text
        assert f"{run['loss_after']:.5g}" in text
    assert result["report"] in text


@pytest.mark.slow
def test_the_reports_show_both_runs(place: Path, result: dict[str, Any]) -> None:
    page = (place / "report.html").read_text(encoding="utf-8")
    public = (place / "report-public.html").read_text(encoding="utf-8")
    for run in result["runs"]:
        assert round_up(run["epsilon"]) in public
        assert f"{run['loss_after']:.4f}" in page
        assert f"{run['loss_after']:.4f}" not in public
    assert page.count('class="plot"') > public.count('class="plot"') >= 1, (
        "losses are drawn for the operator only"
    )


@pytest.mark.slow
def test_an_earlier_demo_is_replaced_only_when_asked_and_nothing_else_ever(
    place: Path, result: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (place / "demo.json").read_bytes()
    assert userdp(["demo", "--out", str(place)]) == 2
    assert "--overwrite" in capsys.readouterr().err
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    assert userdp(["demo", "--out", str(tmp_path), "--overwrite"]) == 2
    assert userdp(["demo", "--out", str(tmp_path / "thesis.txt"), "--overwrite"]) == 2
    assert (place / "demo.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_demos_plans_stay_within_epsilon_8_and_spend_the_same() -> None:
    uls, els = demo.PLANS.values()
    for plan in (uls, els):
        assert plan.guarantee().epsilon <= 8
        assert plan.budget.target_epsilon is not None
        assert plan.guarantee().epsilon <= plan.budget.target_epsilon
        assert plan.guarantee().epsilon > plan.budget.target_epsilon * 0.99
        assert plan.budget.target_delta * plan.population < 0.2
    assert uls.denominator * uls.sampling.group_size * uls.steps == pytest.approx(
        els.denominator * els.steps
    )
