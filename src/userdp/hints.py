"""Hints in two tongues: they are written as options of the command line, and told in Python too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

COMMANDS = (
    "account", "prepare", "plan", "train", "evaluate", "generate", "audit", "report", "export",
    "verify", "stats", "score", "budget", "settle", "members", "forget", "selftest", "tune",
    "federate", "dedup",
)  # fmt: skip
"""Those that are functions of `userdp` as well, with the same names for the same things."""

_NAME = r"--(?P<name>[a-z][a-z0-9-]*)"
_WORD = r"(?!and\b|or\b)[^\s`,;-][^\s`,;]*"
_ANY = rf"--[a-z][a-z0-9-]*(?:[ =]{_WORD})?"
# After the command's name: options, placeholders in capitals, and what looks like a path.
_COMMAND = re.compile(
    r"`?userdp (?:store )?(?P<name>[a-z]+)"
    rf"(?P<rest>(?: (?:{_ANY}|[A-Z]+\b|[^\s`,;]*[/.{{][^\s`,;]+))*)`?"
)
_SERIES = re.compile(rf"(?:{_ANY} )+{_ANY}")
_OPTION = re.compile(
    _NAME + r"(?:[ =](?P<value>[A-Z]{2,}\b|-?\d[\d.e-]*|\S*/\S+)|=(?P<word>[^\s`,;]+))?"
)
_SECTIONS = "plan|sampling|clip|adaptation|learning|run|plain|input|local|measure|silo|model|rules"
_SETTING = re.compile(rf"--set (?:{_SECTIONS})\.(?P<name>\w+)=(?P<value>[^\s`,;]+)")
_SECTION = re.compile(
    rf"(?<![\w./-])(?!\w+\.(?:clip|jsonl?|csv|parquet|toml|txt|gz|py)\b)(?:{_SECTIONS})"
    r"\.([a-z_0-9]+)\b(?![.=/])"
)
_PART = re.compile(_NAME + r"(?:[ =](?P<value>[^\s-]\S*))?|(?P<place>\S+)")


def in_python(text: str) -> str:
    """A message for who called a function: its options become arguments, its commands calls.

    Commands that are no function of `userdp` stay as they are.

    >>> in_python("measure: userdp store score STORE --model MODEL --out a.arrow; leave --seed out")
    'measure: userdp.score(STORE, model=MODEL, out="a.arrow"); leave seed out'
    >>> in_python("use --set learning.precision=bfloat16, or leave learning.engine out")
    'use precision="bfloat16", or leave engine out'
    >>> in_python("evaluate it with --no-base")
    'evaluate it with base=False'
    """
    text = _SECTION.sub(r"\1", _SETTING.sub(_as_option, text))
    told, end = [], 0
    for command in _COMMAND.finditer(text):
        told += [_arguments(text[end : command.start()]), _call(command)]
        end = command.end()
    return "".join(told) + _arguments(text[end:])


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that ``word`` most probably misspells; None where none is like it.

    >>> closest("jsonnl", ["csv", "jsonl"]), closest("xml", ["csv", "jsonl"])
    ('jsonl', None)
    """
    return next(iter(get_close_matches(word, list(known), n=1)), None)


def likely(guess: str | None) -> str:
    """The beginning of a hint that guesses what was meant."""
    return "" if guess is None else f"did you mean {guess}? "


def one_of(word: str, known: Iterable[str]) -> str:
    """The hint where ``word`` is none of ``known``.

    >>> one_of("jsonnl", ["csv", "jsonl"])
    'did you mean jsonl? one of: csv, jsonl'
    """
    return f"{likely(closest(word, known := list(known)))}one of: {', '.join(known)}"


def _as_option(setting: re.Match[str]) -> str:
    """A setting as if it were an option: in Python both are arguments."""
    option = f"--{setting['name'].replace('_', '-')}"
    return option if setting["value"] == "true" else f"{option}={setting['value']}"


def _arguments(text: str) -> str:
    text = _SERIES.sub(lambda found: _listed(found[0]), text)
    return _OPTION.sub(
        lambda found: _argument(found["name"], found["value"] or found["word"]), text
    )


def _call(command: re.Match[str]) -> str:
    """A whole command as the call of a function, where there is one."""
    if command["name"] not in COMMANDS:
        return command[0]
    name, rest = command["name"], command["rest"]
    if rest == " --help":
        return f"help(userdp.{name})"
    return f"userdp.{name}({_listed(rest)})" if rest else f"userdp.{name}"


def _listed(options: str) -> str:
    """Options and places that follow each other, as a function's arguments."""
    return ", ".join(
        _value(part["place"])
        if part["place"]
        else _argument(part["name"], part["value"], flag="=True")
        for part in _PART.finditer(options)
    )


def _argument(name: str, value: str | None, *, flag: str = "") -> str:
    argument = name.replace("-", "_")
    if value is not None:
        return f"{argument}={_value(value)}"
    if name.startswith("no-"):
        return f"{argument.removeprefix('no_')}=False"
    return f"{argument}{flag}"


def _value(word: str) -> str:
    """A word as Python spells it: a number or a placeholder as it is, all else as a string."""
    return word if re.fullmatch(r"-?[\d.e-]+|[A-Z]+", word) else f'"{word}"'
