"""What a docstring says: its first line, its paragraphs, its ``Args`` by name, its ``Example``."""

from __future__ import annotations

import inspect
import re
from importlib import resources
from types import ModuleType
from typing import Any


def documented(thing: Any) -> dict[str, str]:
    """What the ``Args`` of a docstring say of each name, without the source's line breaks."""
    block = re.search(r"\nArgs:\n(.*?)(?=\n\S|\Z)", inspect.getdoc(thing) or "", re.DOTALL)
    found = re.findall(r"(?m)^ {4}(\w+): (.*(?:\n {5,}.*)*)", block[1]) if block else []
    return {name: " ".join(words.split()) for name, words in found}


def paragraphs(thing: Any) -> list[str]:
    """The paragraphs of a docstring between its first line and its arguments."""
    told = re.split(r"\n(?:Args:|Example::)\n", inspect.getdoc(thing) or "")[0]
    return [" ".join(part.split()) for part in told.split("\n\n")[1:] if part.strip()]


def example_of(thing: Any) -> str:
    """The command line that a docstring gives as an example."""
    found = re.search(r"\nExample::\n\n +(.+)", inspect.getdoc(thing) or "")
    return found[1] if found else ""


def first_line(room: ModuleType, name: str) -> str:
    """The first line of the docstring of a command, the function that a module is named after.

    It is read from the text, so that a list of commands imports none of them.
    """
    name = name.split()[-1]
    text = (resources.files(room) / f"{name}.py").read_text(encoding="utf-8")
    found = re.search(rf'(?m)^def {name}\((?:.|\n)*?:\n    """(.+)$', text)
    return found[1].removesuffix('"""') if found else ""
