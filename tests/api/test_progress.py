"""Progress where there is no terminal, and in one."""

import contextlib
import io
import re

import pytest

from userdp.commands import progress as module
from userdp.commands.progress import say, shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def told(monkeypatch, capsys):
    """What is written to stderr, with a line for each step."""
    monkeypatch.setattr(module, "_SECONDS", 0.0)
    return lambda: capsys.readouterr().err


def test_each_line_tells_the_step_and_the_time_left_and_nothing_of_a_hidden_number(told):
    with shown() as bar:
        bar.stage("evaluate", None)
        bar.at(41)
        bar.stage("train", 3, unit="step")
        for done in range(4):
            bar.at(done)
    written = told()
    assert written.startswith("evaluate: ")
    assert ("\r" in written, "41" in written) == (False, False)
    assert re.search(r"\ntrain: step 3 of 3, .* left\n$", written)


def test_a_sentence_stands_above_the_bar_of_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with contextlib.redirect_stderr(Terminal()) as written, shown() as bar:
        bar.stage("train", 3, unit="step")
        bar.at(0)
        say("The noise is halved [not].")
        bar.at(3)
    shown_lines = written.getvalue().replace("\r", "\n").splitlines()
    assert "The noise is halved [not]." in shown_lines
    assert any(line.startswith("train: 100%") for line in shown_lines)
