"""The help of every command: prose that only a width breaks."""

import re

import pytest

from userdp.cli.app import run
from userdp.cli.commands import COMMANDS, build_app, names
from userdp.commands.train import sections


def app_of(command):
    app = build_app([command])
    for word in command.split():
        app = app[word]
    return app


def options(command):
    found = app_of(command).assemble_argument_collection(parse_docstring=True)
    return [one for one in found if one.parse and one.show and one.name.startswith("--")]


@pytest.mark.parametrize("command", names())
def test_no_help_text_breaks_inside_a_sentence(command):
    for option in options(command):
        assert "\n" not in option.parameter.help
        assert option.parameter.help, f"{option.name} of userdp {command} has no help"
    for paragraph in app_of(command).help.split("\n\n"):
        assert "\n" not in paragraph


@pytest.mark.parametrize("command", ["", "train"])
def test_the_help_fits_on_one_screen(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert not any("[default: False]" in line for line in lines)


def test_train_shows_at_most_twenty_options_and_names_the_way_to_all_others(capsys):
    assert len(options("train")) <= 20
    assert run(["train", "--help"]) == 0
    assert "userdp train --settings" in capsys.readouterr().out


@pytest.mark.parametrize("command", names())
def test_the_help_ends_with_a_line_that_one_can_run(capsys, command):
    assert run([*command.split(), "--help"]) == 0
    assert f"Try: userdp {command}" in " ".join(capsys.readouterr().out.split())


def test_every_setting_is_listed_with_what_it_is(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["train", "--settings"]) == 0
    shown = capsys.readouterr().out
    for section, fields in sections().items():
        for name, setting in fields.items():
            assert f"{section}.{name}" in shown
            assert setting.words, f"{section}.{name} has no words"


def test_the_programs_help_lists_every_command_under_its_heading(capsys):
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for heading, commands in COMMANDS.items():
        assert f"─ {heading} ─" in shown
        for command in commands:
            assert re.search(rf"\b{command.split()[-1]}\b", shown)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completions_know_commands_and_options(shell):
    script = build_app().generate_completion(shell=shell)
    for word in ("evaluate", "learning-rate", "dry-run"):
        assert word in script
