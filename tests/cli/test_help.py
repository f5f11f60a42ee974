"""The help of every command: each option under a heading, and prose that only a width breaks."""

import re

import pytest

from userdp.cli.app import run
from userdp.cli.commands import COMMANDS, build_app, names
from userdp.cli.groups import HEADINGS, OWN
from userdp.cli.program import heading_of

GROUPS = "src/userdp/cli/groups.py"


def options(command):
    found = build_app()[command].assemble_argument_collection(parse_docstring=True)
    return [one for one in found if one.parse and one.show and one.name.startswith("--")]


@pytest.mark.parametrize("command", names())
def test_every_option_stands_under_a_heading(command):
    for option in options(command):
        heading = heading_of(command, option.name)
        assert heading is not None, (
            f"{option.name} of userdp {command} stands under no heading: add it to HEADINGS in "
            f"{GROUPS}, where a reader of the help would look for it"
        )
        assert option.name in HEADINGS[heading], f"list {option.name} under {heading!r} in {GROUPS}"


def test_no_option_is_listed_twice_or_for_nothing():
    there = {(command, option.name) for command in names() for option in options(command)}
    known = {name for _, name in there}
    listed = [(heading, name) for heading, found in HEADINGS.items() for name in found]
    stale = sorted({name for _, name in listed} - known)
    assert stale == [], f"no command has {stale}: take them out of {GROUPS}"
    twice = {name for _, name in listed if [one for _, one in listed].count(name) > 1}
    assert twice == {name for _, name in OWN}, f"OWN of {GROUPS} says which of two is meant"
    assert set(OWN) <= there, f"OWN of {GROUPS} speaks of options that are not there"


@pytest.mark.parametrize("command", names())
def test_no_help_text_breaks_inside_a_sentence(command):
    for option in options(command):
        assert "\n" not in option.parameter.help
        assert option.parameter.help, f"{option.name} of userdp {command} has no help"
    for paragraph in build_app()[command].help.split("\n\n"):
        assert "\n" not in paragraph


@pytest.mark.parametrize("width", [80, 120])
def test_headings_stand_in_the_help_and_everything_fits(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert run(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    headings = re.findall(r"╭─ (.+?) ─+╮", shown)
    assert headings == [
        "Arguments", "Budget", "Sampling", "Clipping", "Model", "Data", "Optimizer", "Engine",
        "Operations", "Output", "Every command",
    ]  # fmt: skip
    assert max(map(len, shown.splitlines())) <= width
    assert "[default: False]" not in shown


@pytest.mark.parametrize("command", names())
def test_what_every_command_takes_stands_in_its_help(capsys, command):
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--config" in shown
    assert "--json" in shown
    assert f"Try: userdp {command}" in shown


def test_the_programs_help_lists_every_command_under_its_heading(capsys):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for heading, commands in COMMANDS.items():
        assert f"─ {heading} ─" in shown
        for command, told in commands.items():
            assert re.search(rf"│ {command} +{re.escape(told.line[:20])}", shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_commands_and_options(capsys, shell):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "userdp" in script
    for word in ("evaluate", "learning-rate", "reference", "json"):
        assert word in script
