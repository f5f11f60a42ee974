"""The summary: one sheet of A4 with the claim, and nothing that is the operator's."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, examples_plan
from tests.reporting.test_browser import CHROMIUM, chromium
from tests.reporting.test_html import Outline
from tests.reporting.test_invariant_9 import depends_on_operator, leaks
from userdp.claims import Condition, Lineage
from userdp.claims.parts import ConditionKind, Query
from userdp.reporting.about import About
from userdp.reporting.run_facts import read_run
from userdp.reporting.summary import render_summary

ABOUT = About(
    organisation="Example Institute",
    contact="privacy@example.org",
    data_description="Letters to the editor. " * 8,
    date=date(2026, 1, 2),
)
BASE = {
    "origin": "folder",
    "name": "gpt2",
    "weights": "feed" * 16,
    "kind": "gpt2",
    "layers": 12,
    "width": 768,
    "heads": 12,
    "vocabulary": 50257,
    "parameters": 124_439_808,
}


def the_fullest(make_run: MakeRun) -> Path:
    """A run with conditions and several parts, that did not end."""
    conditions = (
        Condition(kind=ConditionKind.LOOKS, told="evaluate, prepare, probe, train"),
        Condition(kind=ConditionKind.BASE, told="gpt2"),
    )
    asked = Query(id="q", name="quantiles of examples per user", pure_epsilon=0.5)
    return make_run(
        "a-run-with-a-long-name",
        examples_plan(),
        attempts=1,
        facts={"base_model": BASE, "store_facts": {"user_is": "the field 'author'"}},
        lineage=Lineage(parts=(asked,), conditions=conditions),
    )


def summary(run: Path) -> str:
    return render_summary(read_run(run), about=ABOUT)


def test_it_says_the_claim_who_speaks_and_of_what(make_run: MakeRun) -> None:
    facts = {"base_model": BASE, "store_facts": {"user_is": "the field 'author'"}}
    page = " ".join(summary(make_run(facts=facts)).split())
    assert re.search(r"\(ε ≤ \d+\.\d{4}, δ = 10⁻⁵\)", page)
    for words in (
        "Example Institute",
        "privacy@example.org · 2026-01-02",
        "Letters to the editor",
        "named by the field &#39;author&#39;",
        "a local folder called “gpt2”",
        "12 layers of width 768",
        "feed" * 16,
        "says ε ≤",
        "one id, one person",
        "Signature",
    ):
        assert words in page


def test_it_stands_alone_and_shows_nothing_of_the_operators(make_run: MakeRun) -> None:
    run = make_run()
    page = summary(run)
    outline = Outline(page)
    assert not outline.open
    assert not outline.tags & {"script", "link", "img", "iframe"}
    assert leaks(page, run) == set()
    assert not depends_on_operator(summary, run)


def test_of_a_run_without_a_claim_it_says_that_there_is_none(make_run: MakeRun) -> None:
    page = summary(make_run(private=False))
    assert "No ε is claimed" in page
    assert "It was trained without privacy" in page
    assert "ε ≤" not in page


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")
def test_the_fullest_fits_on_one_sheet(make_run: MakeRun, tmp_path: Path) -> None:
    def sheets(page: str) -> int:
        path, printed = tmp_path / "summary.html", tmp_path / "summary.pdf"
        path.write_text(page, encoding="utf-8")
        chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={printed}", path.as_uri())
        return len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))

    page = summary(the_fullest(make_run))
    assert sheets(page) == 1
    assert sheets(page.replace("<section>", "<section style='margin-top: 200mm'>")) == 2  # the twin


def test_the_same_run_gives_the_same_sheet(make_run: MakeRun) -> None:
    run = make_run()
    assert summary(run) == summary(run)
