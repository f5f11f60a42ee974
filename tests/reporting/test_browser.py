"""The page in a real browser, without a window: nothing overflows, everything can be read and
reached by keyboard, and nothing is fetched. Skipped where no Chromium is installed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.conftest import examples_plan, full_page, run_maker, users_plan
from tests.reporting.test_facts import SHAPE
from userdp.claims import Condition, Lineage
from userdp.claims.lineage import ConditionKind
from userdp.ledger.charged_parts import Query
from userdp.reporting.facts import About, read_run, read_runs
from userdp.reporting.page import render_report, render_summary

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")

PROBE = (Path(__file__).parent / "probe.js").read_text("utf-8")


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def probed(page: str, folder: Path, *, width: int, dark: bool = False) -> dict[str, Any]:
    """What `PROBE` finds in the page, whose policy forbids scripts: it is taken out for the probe.

    The page stands in a frame, as a window without a screen has no less than 500 pixels.
    """
    opened, policies = re.subn(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page)
    assert policies == 1
    path = folder / "probed.html"
    frame = html.escape(opened.replace("</body>", f"<script>{PROBE}</script></body>"))
    path.write_text(
        f'<!doctype html><meta name="color-scheme" content="light dark"><body style="margin:0">'
        f'<iframe srcdoc="{frame}" style="border:0;width:{width}px;height:900px"></iframe></body>',
        encoding="utf-8",
    )
    colours = ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    done = chromium(
        folder, f"--window-size={width + 200},900", *colours, "--dump-dom", path.as_uri()
    )
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found is not None, done.stderr
    return json.loads(html.unescape(found.group(1)))


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The public page of one run."""
    return render_report(read_runs([run_maker(tmp_path_factory.mktemp("one"))()]))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The operator's page of several runs."""
    make = run_maker(tmp_path_factory.mktemp("several"))
    plans = {"uls": users_plan(), "els": examples_plan(), "more": users_plan(steps=9)}
    return full_page(*(make(name, plan) for name, plan in plans.items()))


@pytest.mark.parametrize(("name", "width", "dark"), [("public", 400, False), ("full", 1600, True)])
def test_it_can_be_read_and_reached(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, width: int, dark: bool
) -> None:
    found = probed(request.getfixturevalue(name), tmp_path, width=width, dark=dark)
    assert (found["width"], found["fetched"]) == (width, 0)
    assert found["overflow"] <= 0
    assert found["least"] >= 4.5, found["worst"]
    assert (found["paper"] < 0.05) is dark
    assert found["reached"] >= 8
    assert found["unmarked"] == found["unreachable"] == []
    assert 0 < found["claim"] < found["facts"] <= (844 if name == "public" else 1000)  # at once


def test_pale_text_and_a_wide_page_are_caught(public: str, tmp_path: Path) -> None:
    """The twin: what the probe must see."""
    page = public.replace(
        "</main>",
        '<p style="color:#999;width:3000px">pale</p><a href="#x" style="outline:0">x</a></main>',
    )
    found = probed(page, tmp_path, width=1600)
    assert found["overflow"] > 0
    assert (found["worst"], found["least"] < 4.5) == ("pale", True)
    assert len(found["unmarked"]) == 1


def printed(page: str, folder: Path) -> int:
    """The sheets of paper that a page takes; it logs nothing."""
    path, sheets = folder / "page.html", folder / "page.pdf"
    path.write_text(page, encoding="utf-8")
    done = chromium(folder, "--no-pdf-header-footer", f"--print-to-pdf={sheets}", path.as_uri())
    assert "CONSOLE" not in done.stderr
    return len(re.findall(rb"/Type\s*/Page\b", sheets.read_bytes()))


def test_the_fullest_summary_fits_on_one_sheet(tmp_path: Path) -> None:
    """Of a run with conditions and several parts, that did not end."""
    told = {ConditionKind.LOOKS: "evaluate, prepare, probe, train", ConditionKind.BASE: "gpt2"}
    lineage = Lineage(
        parts=(Query(id="q", name="quantiles of examples per user", pure_epsilon=0.5),),
        conditions=tuple(Condition(kind=kind, told=words) for kind, words in told.items()),
    )
    facts = {"base_model": SHAPE, "store_facts": {"user_is": "the field 'author'"}}
    make = run_maker(tmp_path)
    run = make("a-run-with-a-long-name", examples_plan(), attempts=1, facts=facts, lineage=lineage)
    about = About(organisation="Institute", data_description="Letters to the editor. " * 8)
    page = render_summary(read_run(run), about=about)
    assert printed(page, tmp_path) == 1
    twin = page.replace("<section>", "<section style='margin-top: 200mm'>")
    assert printed(twin, tmp_path) == 2, "the twin"
