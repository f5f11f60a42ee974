"""``userdp demo``: what it makes and gains, and its plan."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import userdp
from userdp.cli.output import in_words
from userdp.commands import demo
from userdp.core.vocabulary import round_up
from userdp.plans.resolve_plan import PlanFields, resolve


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def result(place: Path) -> dict[str, Any]:
    return demo.demo(out=place)


@pytest.mark.slow
def test_every_stage_leaves_what_it_says(place, result) -> None:
    assert {path.name for path in place.iterdir()} == {
        "store", "run", "report.html", "report-public.html", "demo.json"
    }  # fmt: skip
    assert json.loads((place / "demo.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(result)
    )
    assert result["users"] + result["held_out_users"] == demo.MODULES
    assert result["text"] == f"torch {metadata.version('torch')}"
    assert result["gain"] == result["loss_before"] - result["loss_after"]
    now = userdp.claim(place / "run").to_dict()
    assert {name: result[name] for name in now} == now, "the claim as it stands at the end"
    page, public = (
        (place / name).read_text(encoding="utf-8") for name in ("report.html", "report-public.html")
    )
    told = "\n".join(in_words(result, "demo"))
    assert result["report"] in told
    assert round_up(result["epsilon"]) in told
    assert round_up(result["epsilon"]) in public
    assert f"{result['loss_after']:.5g}" in told
    assert f"{result['loss_after']:.4f}" in page
    assert f"{result['loss_after']:.4f}" not in public, "losses are for the operator only"


def test_the_demos_plan_is_the_presets_within_epsilon_8() -> None:
    plan, chosen = resolve(chosen=PlanFields(**demo.TRAINED))
    assert 7.9 < plan.guarantee().epsilon <= 8
    assert plan.budget.target_delta * plan.population < 1
    assert set(demo.TRAINED) == {"epsilon", "population"}, "the preset chooses all else"
    assert (plan.steps, plan.denominator) == (chosen.steps, chosen.cohort_size)


def test_the_installed_modules_are_as_many_as_the_demo_declares_and_holds_out() -> None:
    users = [row["user"] for row in demo.modules()]
    assert len(users) == len(set(users)) == demo.MODULES
    held_out = demo.PREPARED["held_out_users"] * demo.MODULES
    assert len(users) - held_out == pytest.approx(demo.TRAINED["population"], rel=0.05)


@pytest.mark.slow
def test_the_demo_gains_a_quarter_of_a_nat(result) -> None:
    """On people it never saw, by the private run itself; usual is twice that."""
    assert result["standing"] == "guarantee"
    assert result["epsilon"] <= 8
    assert result["gain"] >= 0.25
