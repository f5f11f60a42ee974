"""Invariant 9: public and private outputs are kept apart.

The public page must be a function of what ε covers. Two independent checkers: (1) pages made with
different operator's files, or none, are the same bytes; (2) no number of an operator's file stands
in the page, in any usual rounding. The broken twins leak, and are caught.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reporting.conftest import LOSSES, MakeRun, full_page, operator_lines, write_operator
from userdp.reporting import rendering
from userdp.reporting.card import render_model_card
from userdp.reporting.facts import read_run, read_runs
from userdp.reporting.page import render_report, render_summary

Render = Callable[[Path], str]


def public_page(run: Path) -> str:
    return render_report(read_runs([run]))


def leaks(page: str, run: Path) -> set[str]:
    """Numbers of the operator's file (4 digits and more, so no chance hits) that the page shows."""
    numbers = set(re.findall(r"\d+\.\d+|\d[\d,]*", re.sub(r'src="data:[^"]*"', "", page)))
    found = set()
    for line in (run / "operator.jsonl").read_text(encoding="utf-8").splitlines():
        for value in json.loads(line).values():
            if isinstance(value, float):
                forms = {repr(value), *(f"{value:.{digits}f}" for digits in (3, 4, 5))}
                found |= {form for form in forms if len(form) >= 5} & numbers
            elif isinstance(value, int) and value >= 1000:
                found |= {str(value), f"{value:,}"} & numbers
    return found


def depends_on_operator(render: Render, run: Path) -> bool:
    """Whether the page changes with the operator's file."""
    pages = set()
    for losses in (LOSSES, (1.0, 2.0, 3.0)):
        write_operator(run, operator_lines(losses))
        pages.add(render(run))
    (run / "operator.jsonl").unlink()
    pages.add(render(run))
    write_operator(run, operator_lines())
    return len(pages) > 1


def sheet(run: Path) -> str:
    return render_summary(read_run(run))


def card(run: Path) -> str:
    return render_model_card(read_run(run))


@pytest.mark.parametrize("render", [public_page, sheet, card])
def test_invariant_9_what_is_public_holds_no_number_of_the_operator(make_run, render) -> None:
    run = make_run()
    public = render(run)
    assert leaks(public, run) == set()
    assert not depends_on_operator(render, run)
    for private in ("quetzal", str(run.parent)):  # paths of the machine
        assert private not in public
    (run / "operator.jsonl").unlink()
    (run / "operator.jsonl").mkdir()  # opening it would fail
    assert render(run) == public


def test_invariant_9_the_full_page_is_the_public_one_and_one_marked_section(
    make_run: MakeRun,
) -> None:
    """The checkers see what that section holds."""
    run = make_run()

    assert {"5.7731", "5.1429"} <= leaks(full_page(run), run)
    assert depends_on_operator(full_page, run)
    section = re.search(r'<section class="operator".*?</section>', full_page(run), flags=re.DOTALL)
    assert section is not None
    assert "Do not hand this section on" in section.group()
    assert leaks(full_page(run).replace(section.group(), ""), run) == set()


def test_invariant_9_broken_twin_a_loss_let_into_the_settings_is_caught(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allow-list that lets a measured loss among the public facts through."""
    run = make_run(facts={"final_loss": 5.142907})
    assert leaks(public_page(run), run) == set()
    monkeypatch.setitem(rendering.words()["setting"], "final_loss", "")
    assert leaks(public_page(run), run)
