"""The store's total on a report: that of the ledger, and only of the store that was trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, users_plan
from userdp import report
from userdp.claims import claim
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.reporting.numbers import epsilon_text


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store's ledger that knows the run ``run``, and another one."""
    place = tmp_path / "store"
    place.mkdir()
    StoreLedger(place).reserve("c0ffee-run", users_plan())
    StoreLedger(place).reserve("c0ffee-other", users_plan())
    return place


def test_it_stands_beside_the_runs_claim(make_run: MakeRun, store: Path, tmp_path: Path) -> None:
    run, page, sheet = make_run("run"), tmp_path / "page.html", tmp_path / "summary.html"
    told = report(run, out=page, public=True, summary=sheet, store=store)
    total = claim(store).guarantee.epsilon
    assert total == pytest.approx(2 * users_plan().guarantee().epsilon)
    assert told.store_total is not None
    assert told.store_total["epsilon"] == total
    for path in (page, sheet):
        text = path.read_text("utf-8").replace("\u00a0", " ")
        assert f"ε ≤ {epsilon_text(total)}, δ = 2·10⁻⁵" in text
        assert "spent so far" in text


def test_without_the_option_no_total_is_told(make_run: MakeRun, store: Path, tmp_path) -> None:
    told = report(make_run("run"), out=tmp_path / "page.html", public=True)
    assert told.store_total is None
    assert "All that was charged" not in (tmp_path / "page.html").read_text("utf-8")


def test_another_stores_total_is_refused_and_nothing_is_written(
    make_run: MakeRun, store: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    with pytest.raises(UseError, match="knows no run 'stranger'"):
        report(make_run("stranger"), out=page, store=store)
    assert not page.exists()


def test_a_summary_is_of_one_run_and_no_two_files_are_one(make_run: MakeRun, tmp_path) -> None:
    runs, sheet = [make_run("a"), make_run("b")], tmp_path / "summary.html"
    with pytest.raises(UseError, match="summary is about one model, and 2 runs are named"):
        report(runs, summary=sheet)
    with pytest.raises(UseError, match="out and summary name the same file"):
        report(runs[0], out=sheet, summary=sheet)
    with pytest.raises(UseError, match="a place for what it writes"):
        report(runs[0])
    assert not sheet.exists()
