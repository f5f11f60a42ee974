"""The help of every command: made from its function, there at once, and ending in a line to run."""

import inspect
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

import pytest

import userdp
from userdp.cli import output
from userdp.cli.app import run
from userdp.cli.command_line import HELP, NAMES, Command
from userdp.commands.train import sections
from userdp.core.annotations import arguments_of
from userdp.sampling import SAMPLINGS
from userdp.training import loop
from userdp.training.open_run import Training
from userdp.training.private_run import make_private

PAGE = Path(__file__).parents[2] / "docs/how-to/command-line.md"
LOADED = """
import sys
from userdp.cli.app import run
run(sys.argv[1:])
slow = "torch transformers scipy numpy pandas duckdb matplotlib pyarrow jinja2"
print(sorted({*slow.split()} & set(sys.modules)), file=sys.stderr)
"""


def shown(capsys, monkeypatch, *line, columns=80):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(line) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", NAMES)
def test_every_option_has_words_and_the_help_ends_with_a_line_to_run(capsys, monkeypatch, command):
    told = shown(capsys, monkeypatch, *command.split(), "--help")
    assert max(len(line) for line in told.splitlines() if "Try: " not in line) <= 80
    assert f"Try: userdp {command} " in " ".join(told.split())
    for name, spelled in Command(command).spelled.items():
        assert re.search(rf"\n  (--no-|--)?{name.replace('_', '-')}\b.*\s+\w", told, re.I), spelled


@pytest.mark.parametrize("line", [[], ["--help"], ["train", "--help"]], ids=str)
def test_the_help_fits_on_one_screen_which_the_docs_show(capsys, monkeypatch, line):
    told = shown(capsys, monkeypatch, *line)
    assert told.strip() in PAGE.read_text(encoding="utf-8")
    assert told.count("\n") <= 50
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize("line", [["--help"], ["train", "--help"], ["--version"]], ids=str)
def test_the_help_loads_no_library_that_is_slow_to_load(line):
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *line], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_train_shows_at_most_twenty_options_and_names_the_way_to_all_others(capsys, monkeypatch):
    assert len(Command("train").spelled) <= 20  # one is the store
    assert "userdp train --settings" in shown(capsys, monkeypatch, "train", "--help")
    listed = shown(capsys, monkeypatch, "train", "--settings", columns=200)
    for setting in Command("train", settings=True).spelled.values():
        assert re.search(rf"\n  {setting}(, --no-\S+| [A-Z]+)?\s+\S", listed), setting
    constants = {one.name for sampling in SAMPLINGS.values() for one in fields(sampling)}
    settings = Command("account", settings=True).spelled
    assert {f"sampling.{constant}" for constant in constants} <= settings.keys()


def test_an_option_of_train_is_spelled_in_two_files_its_own_and_that_of_the_group_it_belongs_to():
    groups = [one.of for one in sections().values() if not one.whole]
    spelled = defaultdict(set)
    for thing in (userdp.train, *groups, loop.train, make_private, Training):
        for one in arguments_of(thing):
            if not one.needed:
                spelled[one.name].add(inspect.getfile(thing))
    assert max(len(spelled[one.name]) for one in arguments_of(userdp.train)) == 2


def test_the_programs_help_lists_every_command_under_its_heading(capsys, monkeypatch):
    told = shown(capsys, monkeypatch)
    assert told == shown(capsys, monkeypatch, "store")
    assert told == f"{HELP}\n"
    for name in NAMES:
        about = Command(name).about.partition("\n")[0]
        assert re.search(rf"\n  {name} +{re.escape(about)}\n", told)


def test_whatever_is_said_in_words_is_said_of_a_command():
    """A macro that belongs to no command would never be seen."""
    source = (Path(output.__file__).parent / "words.j2").read_text(encoding="utf-8")
    said = set(re.findall(r"macro (\w+)\(answer, values\)", source))
    assert said <= {name.split()[-1] for name in NAMES}
    assert said >= {"account", "train", "evaluate", "audit", "forget"}
