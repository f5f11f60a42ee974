"""Hints in two tongues: they are written as options of the command line, and told in Python too."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

_OPTION = re.compile(r"(?P<command>`[^`]*`)|--(?:set \w+\.)?(?P<no>no-)?(?P<name>[a-z][\w-]*)")


def in_python(text: str) -> str:
    """A message for who called a function: options become arguments; `commands` stay as they are.

    >>> in_python("measure with `userdp store stats STORE --epsilon 1`; leave --held-out-users out")
    'measure with `userdp store stats STORE --epsilon 1`; leave held_out_users out'
    >>> in_python("use --set learning.precision=bfloat16, or evaluate with --no-base")
    'use precision=bfloat16, or evaluate with base=False'
    """
    return _OPTION.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    if found["command"]:
        return found["command"]
    return found["name"].replace("-", "_") + ("=False" if found["no"] else "")


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
