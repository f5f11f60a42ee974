"""Hints in two tongues: they are written as options of the command line, and told in Python too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_ANY = r"--[a-z][a-z0-9-]*(?:[ =](?!and\b|or\b)[^\s`,;-][^\s`,;]*)?"
_COMMAND = re.compile(
    rf"(`userdp [^`]*`|userdp (?:store )?[a-z]+(?: (?:{_ANY}|[A-Z]+\b|[^\s`,;]*[/.{{][^\s`,;]+))*)"
)
"""After a command's name: options, placeholders in capitals, and what looks like a path."""
_OPTION = re.compile(
    r"--(?P<no>no-)?(?P<name>[a-z][a-z0-9_-]*)"
    r"(?:[ =](?P<value>[A-Z]{2,}\b|-?\d[\d.e-]*|\S*/\S+)|=(?P<word>[^\s`,;]+))?"
)
_SECTIONS = (
    "plan|sampling|clip|adaptation|learning|run|plain|input|local|measure|model|rules|public"
)
_SETTING = re.compile(rf"--set (?:{_SECTIONS})\.(\w+)=")
_SECTION = re.compile(
    rf"(?<![\w./-])(?!\w+\.(?:clip|jsonl?|csv|parquet|toml|txt|gz|py)\b)(?:{_SECTIONS})"
    r"\.([a-z_0-9]+)\b(?![.=/])"
)


def in_python(text: str) -> str:
    """A message for who called a function: options become arguments, and commands stay commands.

    >>> in_python("measure with `userdp store stats STORE --epsilon 1`; leave --seed out")
    'measure with `userdp store stats STORE --epsilon 1`; leave seed out'
    >>> in_python("use --set learning.precision=bfloat16, or leave learning.engine out")
    'use precision="bfloat16", or leave engine out'
    >>> in_python("evaluate it with --no-base")
    'evaluate it with base=False'
    """
    parts = _COMMAND.split(text)  # every second one is a command
    parts[::2] = [
        _OPTION.sub(_argument, _SECTION.sub(r"\1", _SETTING.sub(r"--\1=", part)))
        for part in parts[::2]
    ]
    return "".join(parts)


def _argument(option: re.Match[str]) -> str:
    """An option as an argument; its value as Python spells it."""
    name, value = option["name"].replace("-", "_"), option["value"] or option["word"]
    if value is None:
        return f"{name}=False" if option["no"] else name
    plain = re.fullmatch(r"-?[\d.e-]+|[A-Z]+|true", value)
    spelled = value.replace("true", "True") if plain else f'"{value}"'
    return f"{name}={spelled}"


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
