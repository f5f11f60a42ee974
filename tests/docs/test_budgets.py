"""The lives that docs/budgets.md tells, played: its numbers are those that its blocks print."""

from __future__ import annotations

import contextlib
import io

from tests.docs.pages import blocks


def test_the_lives_of_the_page_print_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    page = list(blocks("docs/budgets.md"))
    lives = [number for number, block in enumerate(page) if block.language == "python"]
    assert len(lives) == 2
    for number in lives:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(page[number].text, names)
        shown = page[number + 1]
        assert shown.language == "text"
        assert said.getvalue() == shown.text
