"""How an answer is printed: one JSON object, or sentences and tables, on stdout."""

from __future__ import annotations

import json as json_library
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import FileSystemLoader
from rich.console import Console
from rich.table import Table

from userdp.claims.claim_sentences import dry_run_in_words, foreseen_in_words
from userdp.core.codec import plain
from userdp.core.vocabulary import delta_up, round_up
from userdp.reporting.rendering import environment
from userdp.reporting.table import table_of

Part: TypeAlias = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A part of an answer: a text, values by their names, or rows of them."""


def show_answer(answer: Any, command: str, *, json: bool) -> int:
    """Print what a function of `userdp.commands` returned, and return the exit status.

    Nothing is printed of None: another process says it.
    """
    if answer is None:
        return 0
    values = plain(answer)
    if json:
        print(json_library.dumps(values, allow_nan=False))
    else:
        show(in_words(answer, command))
    return int(False in (values.get("ok"), values.get("passed")))


def in_words(answer: Any, command: str) -> Iterator[Part]:
    """The parts of an answer, in the order in which the command's macro in ``words.j2`` says them.

    Args:
        answer: of a function of `userdp.commands`.
        command: its name.
    """
    parts, values = list[Part](), plain(answer)

    def draw(part: Part) -> str:
        """Stands in the macro's text for a part that is no sentence."""
        parts.append(part)
        return f"\n\n\0{len(parts) - 1}\n\n"

    macros: Any = _TEMPLATES.get_template("words.j2").make_module({"draw": draw, **_KNOWN})
    said = getattr(macros, command.split()[-1])(answer, values)
    for paragraph in re.split(r"\n\s*\n", f"{said}\n\n{macros.for_whom(values)}"):
        text = " ".join(paragraph.split())
        if text:
            yield parts[int(text[1:])] if text.startswith("\0") else text


def _with_keys(of: Any, wanted: Callable[[str], bool]) -> Any:
    """A mapping, or each of several rows, with the wanted keys only."""
    if isinstance(of, Mapping):
        return {key: value for key, value in of.items() if wanted(key)}
    return [_with_keys(row, wanted) for row in of]


_TEMPLATES = environment().overlay(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=False, finalize=None
)
_KNOWN = {
    "only": lambda names, of: _with_keys(of, lambda key: key in names.split()),
    "without": lambda names, of: _with_keys(of, lambda key: key not in names.split()),
    "named": lambda name, of: [{name: key, **row} for key, row in of.items()],
    "dry_run": dry_run_in_words,
    "foreseen": foreseen_in_words,
    "round_up": round_up,
}
"""What the macros can call."""


_TOLD: Any = {"epsilon": round_up, "delta": delta_up, "multiplier": str}
_TOLD |= dict.fromkeys(("share", "spent"), "{:.1%}".format)
"""How numbers are told, by the last word of their names: of noise all digits, to be copied."""


def show(parts: Iterable[Part]) -> None:
    """Print the parts of an answer; only a terminal needs line breaks, which would cut paths."""
    width = None if sys.stdout.isatty() else 10**6
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    for part in parts:
        for one in _drawn(part):
            console.print(one)


def _drawn(part: Any, caption: str = "") -> Iterator[str | Table]:
    """A text as it is; values or rows as a table, numbers on the right, below a caption.

    What is nested in values follows; of rows it is left out.
    """
    if isinstance(part, str):
        yield part
        return
    rows = [part] if isinstance(part, Mapping) else part
    known = [(key, one) for row in rows for key, one in row.items() if one is not None]
    nested = {key: one for key, one in known if _is_nested(one)}
    keys = dict.fromkeys(key for key, _ in known if key not in nested)
    cells = [{key.replace("_", " "): _rounded(key, row.get(key)) for key in keys} for row in rows]
    said = table_of(cells)
    columns, lines = [*zip(said.columns, said.numeric, strict=True)], said.rows
    if rows is not part:  # names and values, below each other
        columns, lines = [("", False)] * 2, [*zip(said.columns, *said.rows, strict=True)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=rows is part)
    for heading, numeric in columns:
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    yield from filter(None, [caption, table] if keys else [])
    for key, inner in nested.items() if rows is not part else ():
        yield from _drawn(inner, key.replace("_", " "))


def _is_nested(value: Any) -> bool:
    first = value[0] if value and isinstance(value, list | tuple) else value
    return isinstance(first, Mapping)


def _rounded(key: str, value: Any) -> Any:
    """A value; ε and δ in words, rounded up, and shares in percent."""
    told = _TOLD.get(key.rpartition("_")[2])
    return value if told is None or value is None else told(float(value))
