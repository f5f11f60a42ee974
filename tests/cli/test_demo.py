"""``userdp demo``: a tiny one through the same code, and the constants of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import userdp
from userdp.cli.output import in_words, show
from userdp.commands import demo
from userdp.core.vocabulary import round_up
from userdp.plans.resolved import PlanFields, resolve


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "out"


@pytest.fixture(scope="module")
def result(place: Path) -> dict[str, Any]:
    tiny = {"model": "new", "layers": 1, "width": 16, "heads": 2, "steps": 2}
    sizes = {"uls": {"cohort_size": 10}, "els": {"batch_size": 10}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "PACKAGES", ("jinja2", "markupsafe"))
        patch.setattr(demo, "PREPARED", demo.PREPARED | {"max_users": 30, "held_out_users": 0.2})
        patch.setattr(demo, "TRAINED", demo.TRAINED | tiny)
        for name, sampled in demo.RUNS.items():
            patch.setitem(demo.RUNS, name, sampled | sizes[name] | {"population": 24})
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
        now = userdp.claim(place / run["algorithm"].lower()).to_dict()
        assert {name: run[name] for name in now} == now, "the claim as it stands at the end"
        assert round_up(run["epsilon"]) in told
        assert round_up(run["epsilon"]) in public
        assert f"{run['loss_after']:.5g}" in told
        assert f"{run['loss_after']:.4f}" in page
        assert f"{run['loss_after']:.4f}" not in public, "losses are for the operator only"


def test_what_lies_at_the_place_stays(tmp_path, userdp) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("years of work", encoding="utf-8")
    for out in (tmp_path, file):
        assert userdp("demo", "--out", out)[0] == 2
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text(encoding="utf-8") == "years of work"


def test_the_demos_plans_stay_within_epsilon_8_and_spend_the_same() -> None:
    fixed = {name: demo.TRAINED[name] for name in ("epsilon", "delta", "steps", "l2_clip_norm")}
    uls = resolve(chosen=PlanFields(**fixed, **demo.RUNS["uls"]))[0]
    sampled = {**demo.RUNS["els"], "sampling": {"kind": "examples"}}
    del sampled["settings"]
    els = resolve(chosen=PlanFields(**fixed, **sampled))[0]
    for plan in (uls, els):
        assert 7.8 < plan.guarantee().epsilon <= 7.9
        assert plan.budget.target_delta * plan.population < 0.2
    gradients = uls.denominator * uls.sampling.group_size * uls.steps
    assert gradients == pytest.approx(els.denominator * els.steps)
