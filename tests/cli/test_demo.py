"""``userdp demo``: a tiny one through the same code, and the constants of the real one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans import changed_plan
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
def test_every_stage_leaves_what_it_says(place, result, capsys) -> None:
    assert {path.name for path in place.iterdir()} == {
        "store", "uls", "els", "report.html", "report-public.html", "demo.json"
    }  # fmt: skip
    assert json.loads((place / "demo.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(result)
    )
    assert [run["algorithm"] for run in result["runs"]] == ["ULS", "ELS"]
    (source,) = result["sources"]
    assert set(source["packages"]) == {"jinja2", "markupsafe"}
    assert all(source["packages"].values())
    page, public = (
        (place / name).read_text(encoding="utf-8") for name in ("report.html", "report-public.html")
    )
    show(in_words(result, "demo"))
    told = capsys.readouterr().out
    assert result["report"] in told
    for run in result["runs"]:
        assert round_up(run["epsilon"]) in told
        assert round_up(run["epsilon"]) in public
        for loss in (run["loss_before"], run["loss_after"]):
            assert f"{loss:.5g}" in told
        assert f"{run['loss_after']:.4f}" in page
        assert f"{run['loss_after']:.4f}" not in public, "losses are for the operator only"
    assert page.count('class="plot"') > public.count('class="plot"') >= 1


@pytest.mark.slow
def test_an_earlier_demo_is_replaced_only_when_asked_and_nothing_else_ever(
    place, result, tmp_path, userdp
) -> None:
    before = (place / "demo.json").read_bytes()
    status, _, err = userdp("demo", "--out", place)
    assert (status, "--overwrite" in err) == (2, True)
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    for out in (tmp_path, tmp_path / "thesis.txt"):
        assert userdp("demo", "--out", out, "--overwrite")[0] == 2
    assert (place / "demo.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_demos_plans_stay_within_epsilon_8_and_spend_the_same() -> None:
    uls, els = demo.PLANS.values()
    for plan in (uls, els):
        target = plan.budget.target_epsilon
        assert target is not None
        assert target * 0.99 < plan.guarantee().epsilon <= target <= 8
        assert plan.budget.target_delta * plan.population < 0.2
    gradients = uls.denominator * uls.sampling.group_size * uls.steps
    assert gradients == pytest.approx(els.denominator * els.steps)
