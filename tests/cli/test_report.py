"""``userdp report``: one page, or one clear error and no page."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.ledgers import reserve
from tests.reporting.conftest import MakeRun, run_maker, users_plan
from userdp.cli.app import run as userdp
from userdp.ledger import StoreLedger


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    return run_maker(tmp_path)


@pytest.mark.slow
def test_the_page_and_the_json_say_the_same_epsilon_as_account(
    make_run: MakeRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, out = make_run(), tmp_path / "report.html"
    assert userdp(["report", str(run), "--out", str(out), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert userdp(["account", "--ledger", str(run), "--json"]) == 0
    accounted = json.loads(capsys.readouterr().out)
    assert reported["runs"][0]["epsilon"] == accounted["epsilon"]
    assert reported["runs"][0]["headline"] == accounted["headline"]
    assert "Operator only" in out.read_text(encoding="utf-8")


def test_a_page_with_the_operators_section_is_the_operators(
    make_run: MakeRun,
    tmp_path: Path,
) -> None:
    run = make_run()
    full, public = tmp_path / "full.html", tmp_path / "public.html"
    assert userdp(["report", str(run), "--out", str(full)]) == 0
    assert userdp(["report", str(run), "--out", str(public), "--public"]) == 0
    assert stat.S_IMODE(full.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) & 0o044
    assert "5.1429" in full.read_text(encoding="utf-8")
    assert "5.1429" not in public.read_text(encoding="utf-8")


def test_the_house_that_reports_stands_in_a_configuration_once_for_all(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, config = make_run(), tmp_path / "house.toml"
    config.write_text(
        '[report]\norganisation = "Example Institute"\ncontact = "privacy@example.org"\n',
        encoding="utf-8",
    )
    sheet = tmp_path / "summary.html"
    asked = ["report", str(run), "--summary", str(sheet), "--data-description", "Letters."]
    assert userdp([*asked, "--config", str(config)]) == 0
    assert f"Summary: {sheet}. It holds public facts only." in capsys.readouterr().out
    text = sheet.read_text(encoding="utf-8")
    for words in ("Example Institute", "privacy@example.org", "Letters."):
        assert words in text
    assert stat.S_IMODE(sheet.stat().st_mode) & 0o044


def test_json_has_the_second_accountants_figure_and_the_stores_total(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, place = make_run(), tmp_path / "store"
    place.mkdir()
    reserve(StoreLedger(place), "c0ffee-run", users_plan())
    out = str(tmp_path / "summary.html")
    assert userdp(["report", str(run), "--summary", out, "--store", str(place), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["runs"]
    assert one["second_opinion"]["accountant"] == "dp-accounting"
    assert one["second_opinion"]["epsilon"] == pytest.approx(one["epsilon"], rel=1e-3)
    assert one["epsilon"] == told["store_total"]["epsilon"]
    assert told["summary"] == out
