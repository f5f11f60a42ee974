"""``userdp report``: one page, or one clear error and no page."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.ledgers import reserve
from tests.reporting.conftest import run_maker, users_plan
from userdp.ledger import StoreLedger


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_maker(tmp_path)()


def test_a_page_with_the_operators_section_is_the_operators(run, tmp_path, userdp) -> None:
    full, public = tmp_path / "full.html", tmp_path / "public.html"
    assert userdp("report", run, "--out", full)[0] == 0
    assert userdp("report", run, "--out", public, "--public")[0] == 0
    assert stat.S_IMODE(full.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) & 0o044
    assert "5.1429" in full.read_text(encoding="utf-8")
    assert "5.1429" not in public.read_text(encoding="utf-8")


def test_the_house_that_reports_stands_in_a_configuration_once_for_all(
    run, tmp_path, userdp
) -> None:
    config, sheet = tmp_path / "house.toml", tmp_path / "summary.html"
    house = '[report]\norganisation = "Example Institute"\ncontact = "privacy@example.org"\n'
    config.write_text(house, encoding="utf-8")
    asked = ("--summary", sheet, "--data-description", "Letters.", "--config", config)
    assert f"Summary: {sheet}. It holds public facts only." in userdp("report", run, *asked)[1]
    for words in ("Example Institute", "privacy@example.org", "Letters."):
        assert words in sheet.read_text(encoding="utf-8")
    assert stat.S_IMODE(sheet.stat().st_mode) & 0o044


def test_json_has_the_second_accountants_figure_and_the_stores_total(run, tmp_path, userdp) -> None:
    place, sheet = tmp_path / "store", tmp_path / "summary.html"
    place.mkdir()
    reserve(StoreLedger(place), "c0ffee-run", users_plan())
    told = json.loads(userdp("report", run, "--summary", sheet, "--store", place, "--json")[1])
    (one,) = told["runs"]
    assert one["second_opinion"]["accountant"] == "dp-accounting"
    assert one["second_opinion"]["epsilon"] == pytest.approx(one["epsilon"], rel=1e-3)
    assert (one["epsilon"], told["summary"]) == (told["store_total"]["epsilon"], str(sheet))
