"""The help of every command: prose that only a width breaks."""

import re

import pytest

from userdp.cli.app import run
from userdp.cli.commands import COMMANDS, build_app, names


def options(command):
    found = build_app()[command].assemble_argument_collection(parse_docstring=True)
    return [one for one in found if one.parse and one.show and one.name.startswith("--")]


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
    assert headings == ["Arguments", "Parameters", "Learning", "Plan", "With every command"]
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
