"""Studies: designs are read as they stand, runs resume, intervals and verdicts are right."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from papers import runs
from papers.design import DESIGNS, Design, Method, Setting, read_declared, read_design
from papers.figures import FIGURES, entry, page
from papers.findings import Verdict, verdict_by
from papers.losses import Estimate, Losses, holm
from papers.runs import Campaign
from tests.speed import fast_then_slow
from userdp.core.errors import UseError

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/results/findings.md"
SMALL = """
question = "?"
figures = []
repetitions = 2
rates = [1e-3, 3e-3]
tuned_by = ["text", "method"]
[common]
text = "commits"
steps = 4
epsilon = 4.0
gradients = 16
[[cells]]
method = ["uls", "els"]
group_size = [1, 4, 8]
"""


@pytest.fixture
def design(tmp_path: Path) -> Design:
    path = tmp_path / "small.toml"
    path.write_text(SMALL, encoding="utf-8")
    return read_design(path)


def test_a_design_is_the_product_of_its_lists(design: Design) -> None:
    cells = {(setting.method, setting.group_size) for setting in design.cells}
    assert cells == set(itertools.product((Method.ULS, Method.ELS), (1, 4, 8)))
    assert design.runs == 2 * 2 + 6 * 2
    assert len(design.groups()) == 2


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("group_size = [1, 4, 4]", "twice"),
        ("group_size = [1]\nnobody = 3", "nobody"),
        ('group_size = [1]\nselection = "best"', "selection"),
    ],
)
def test_a_design_with_an_unknown_or_a_repeated_cell_is_refused(
    tmp_path: Path, changed: str, words: str
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(SMALL.replace("group_size = [1, 4, 8]", changed), encoding="utf-8")
    with pytest.raises(UseError, match=words):
        read_design(path)


OTHERS = {"texts", "marathe", "marathe-text", "marathe-cap"}
"""Constants of texts, and of federations: their own tests read them."""


NAMES = sorted({path.stem for path in DESIGNS.glob("*.toml")} - OTHERS)


@pytest.mark.parametrize("name", fast_then_slow(NAMES, fast=2))
def test_every_design_that_is_kept_gives_plans_within_their_budgets(name: str) -> None:
    declared, settings = read_declared(), list(read_design(DESIGNS / f"{name}.toml").cells)
    setting = settings[len(settings) // 2]
    epsilon = setting.plan(declared[setting.text]).guarantee().epsilon
    if setting.epsilon is not None and setting.population_factor == 1:
        assert 0.99 * setting.epsilon < epsilon <= setting.epsilon


def _fake_run(losses: dict[str, float]) -> Any:
    def run_one(campaign: Campaign, setting: Setting, rate: float, name: str) -> dict[str, Any]:
        loss = losses.get(f"{setting.method}-{rate}-{name}", 1.0)
        return {"key": runs.key_of(setting, rate, name), "loss": loss, "seconds_in_all": 1.0}

    return run_one


def test_a_campaign_chooses_rates_then_measures_and_goes_on_where_it_stopped(
    design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "run_one", _fake_run({"uls-0.003-tune": 0.5}))
    told: list[str] = []
    campaign = Campaign(work=tmp_path, results=tmp_path, declared={}, say=told.append)
    campaign.run(design)
    rows = campaign.rows(design)
    assert len(rows) == len(told) == design.runs
    assert {row["design"] for row in rows} == {design.digest}
    rates = {
        (row["key"]["setting"]["method"], row["key"]["rate"])
        for row in rows
        if row["key"]["run"] != "tune"
    }
    assert rates == {("uls", 0.003), ("els", 0.001)}
    file = tmp_path / f"{design.name}.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[:-3]) + "\n" + lines[-3][:20] + "\n", encoding="utf-8")
    campaign.run(design)
    assert len(campaign.rows(design)) == design.runs
    assert len(told) == design.runs + 3


def _rows(losses: dict[tuple[str, int], list[float]]) -> list[dict[str, Any]]:
    base = {"text": "commits", "base": "docstrings", "epsilon": 1.0}
    return [
        {
            "key": {"setting": {**base, "method": m, "group_size": g}, "rate": 1, "run": str(n)},
            "loss": loss,
        }
        for (m, g), values in losses.items()
        for n, loss in enumerate(values)
    ]


@pytest.mark.parametrize("pooled", [True, False])
def test_a_difference_is_students_within_one_epsilon_and_welchs_across_two(pooled: bool) -> None:
    """More noise scatters runs more: cells of two ε are not pooled."""
    one, other = [5.0, 5.4, 5.1], [4.90, 4.91, 4.92]
    rows = _rows({("uls", 1): one, ("els", 1): other})
    if not pooled:
        for row in rows[3:]:
            row["key"]["setting"] = row["key"]["setting"] | {"epsilon": 8.0}
    found = Losses(rows).difference({"method": "uls"}, {"method": "els"})
    right = stats.ttest_ind(one, other, equal_var=pooled)
    interval = right.confidence_interval(0.95)
    assert found.value == pytest.approx(np.mean(one) - np.mean(other))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert found.p == pytest.approx(right.pvalue)


def test_holm_keeps_the_family_and_stops_at_the_first_failure() -> None:
    def estimates(*ps: float) -> list[Estimate]:
        return [Estimate(value=-1, low=-2, high=0, p=p) for p in ps]

    assert holm(estimates(0.02, 0.03, 0.01)) == [True, True, True]
    assert holm(estimates(0.02, 0.06, 0.01)) == [True, False, True]
    assert holm(estimates(0.04, 0.04)) == [False, False]


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([[1, 1], [1]], Verdict.HOLDS),
        ([[1, 1], [0]], Verdict.IN_PART),
        ([[1, 0]], Verdict.IN_PART),
        ([[1], [-1]], Verdict.IN_PART),
        ([[1, -1]], Verdict.DOES_NOT_HOLD),
        ([[1, -1], [0]], Verdict.DOES_NOT_HOLD),
        ([[0, 0], [0]], Verdict.CANNOT_TELL),
    ],
)
def test_a_sentence_holds_only_if_all_its_parts_are_told_and_none_against(
    parts: list[list[int]], verdict: Verdict
) -> None:
    assert verdict_by(*parts) is verdict


def test_the_page_is_what_the_rows_and_the_code_make() -> None:
    assert page({name: entry(name) for name in FIGURES}) == PAGE.read_text(encoding="utf-8")


def told(*line: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a command says in a folder."""
    names = {**os.environ, **environment}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False, env=names)


PRECEDE = (sys.executable, ROOT / "scripts/designs_precede.py")


def test_every_design_was_committed_before_its_results() -> None:
    if told("git", "rev-parse", "--is-shallow-repository", folder=ROOT).stdout.strip() != "false":
        pytest.skip("no whole history of a git checkout here, which is what is asked")
    done = told(*PRECEDE, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("order", ["right", "late", "together", "changed"])
def test_a_design_that_came_after_its_results_is_told(
    design: Design, tmp_path: Path, order: str
) -> None:
    """The right order passes; a design that came late, with its results, or changed does not."""
    folder = tmp_path / "repository"
    row = json.dumps({"design": design.digest, "date": "2026-01-02T00:00:00+00:00"}) + "\n"
    kept = {"papers/designs/small.toml": SMALL}
    rows = {"docs/results/papers/small.jsonl": row}
    commits = {
        "right": [kept, rows],
        "late": [rows, kept],
        "together": [kept | rows],
        "changed": [{"papers/designs/small.toml": SMALL + "\n"}, rows],
    }[order]
    for made in ("papers/designs", "docs/results/papers"):
        (folder / made).mkdir(parents=True)
    told("git", "init", "-q", folder=folder)
    for number, files in enumerate(commits):
        for path, content in files.items():
            (folder / path).write_text(content, encoding="utf-8")
        dates = dict.fromkeys(
            ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"2026-01-0{1 + 2 * number}T00:00:00+00:00"
        )
        told("git", "add", "-A", folder=folder)
        commit = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "one")
        assert told(*commit, folder=folder, **dates).returncode == 0
    done = told(*PRECEDE, folder=folder)
    assert (done.returncode == 0) == (order == "right"), done.stdout + done.stderr
