"""How an answer is printed: one JSON object, or sentences and tables, on stdout."""

from __future__ import annotations

import json as json_library
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.table import Table as Drawn

from userdp.claims import Claim
from userdp.claims.claim_sentences import dry_run_in_words, foreseen_in_words
from userdp.core.codec import plain
from userdp.core.vocabulary import delta_up, round_up
from userdp.reporting.facts import parts_of_claim
from userdp.reporting.table import MISSING, Table, table_of

Part: TypeAlias = str | Claim | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A part of an answer: a text, a claim, values by their names, or the rows of a table."""
_FOR_WHOM = {
    True: "Operator-only: exact facts about people and their text, which no epsilon covers.",
    False: "May be handed on: epsilon covers it.",
}
stdout = Console(highlight=False, markup=False, emoji=False)
_SHARES = ("share", "spent", "better_for")


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
        show(in_words(answer, command, values))
        if type(operator_only := values.get("operator_only")) is bool:
            show([_FOR_WHOM[operator_only]])
    return int(False in (values.get("ok"), values.get("passed")))


def in_words(answer: Any, command: str, values: Any = None) -> Iterator[Part]:
    """The parts of an answer, in the order in which the command's macro in ``words.j2`` says them.

    The values of a command without a macro are shown by their names.

    Args:
        answer: of a function of `userdp.commands`.
        command: its name.
        values: the object of ``--json``; by default the answer is that object.
    """
    values, parts = answer if values is None else values, list[Part]()

    def draw(part: Part) -> str:
        """Stands in the macro's text for a part that is no sentence."""
        parts.append(part)
        return f"\n\n\0{len(parts) - 1}\n\n"

    macros: Any = _WORDS.get_template("words.j2").make_module({"draw": draw})
    macro = getattr(macros, command.split()[-1], lambda answer, values: draw(values))
    for paragraph in re.split(r"\n\s*\n", macro(answer, values)):
        text = " ".join(paragraph.split())
        if text:
            yield parts[int(text[1:])] if text.startswith("\0") else text


def _with_keys(of: Any, wanted: Callable[[str], bool]) -> Any:
    """A mapping, or each of several rows, with the wanted keys only."""
    if isinstance(of, Mapping):
        return {key: value for key, value in of.items() if wanted(key)}
    return [_with_keys(row, wanted) for row in of]


_WORDS = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    autoescape=False,  # for a terminal
)
_WORDS.globals |= {
    "only": lambda names, of: _with_keys(of, lambda key: key in names.split()),
    "without": lambda names, of: _with_keys(of, lambda key: key not in names.split()),
    "named": lambda name, of: [{name: key, **row} for key, row in of.items()],
    "dry_run": dry_run_in_words,
    "foreseen": foreseen_in_words,
    "round_up": round_up,
}


def show(parts: Iterable[Part], *, console: Console = stdout) -> None:
    """Print the parts of an answer."""
    for part in parts:
        for printed in _lines_and_tables(part):
            # Only a terminal needs line breaks; elsewhere they would cut paths.
            wrapped = not isinstance(printed, str) or console.is_terminal
            console.print(printed, soft_wrap=not wrapped)


def _lines_and_tables(part: Any, caption: str = "") -> Iterator[Drawn | str]:
    """A part of an answer as lines and tables, below a caption."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Claim):
        yield from (f"{words}." for words in (f"Claim: {part.headline}", *part.notes))
        yield from map(_drawn, filter(None, [parts_of_claim(part)]))
    elif isinstance(part, Mapping):
        known = {key: value for key, value in part.items() if value is not None}
        nested = {key: value for key, value in known.items() if _is_nested(value)}
        flat = {_heading(key): _cell(key, known[key]) for key in known if key not in nested}
        if flat and caption:
            yield caption
        width = max(map(len, flat), default=0)
        yield from (f"{name.ljust(width)}  {value}" for name, value in flat.items())
        for key, inner in nested.items():
            yield from _lines_and_tables(inner, _heading(key))
    else:
        cells = (cell for row in part for cell in row.items())
        keys = dict.fromkeys(key for key, one in cells if one is not None and not _is_nested(one))
        rows = [{_heading(key): _cell(key, row.get(key)) for key in keys} for row in part]
        if keys:
            yield _drawn(table_of(rows, caption=caption))


def _is_nested(value: Any) -> bool:
    listed = isinstance(value, list | tuple) and bool(value) and isinstance(value[0], Mapping)
    return listed or isinstance(value, Mapping | Claim)


def _heading(key: str) -> str:
    return key.replace("_", " ")


def _cell(key: str, value: Any) -> str:
    """A value for people; ε and δ are rounded up."""
    if value is None or isinstance(value, bool):
        return MISSING if value is None else "yes" if value else "no"
    if key in _SHARES:
        return f"{100 * value:.1f} %"
    if key in ("epsilon", "delta"):
        return (round_up if key == "epsilon" else delta_up)(float(value))
    if isinstance(value, float):
        return f"{value:.5g}" if math.isfinite(value) else "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or MISSING
    return f"{value:,}" if isinstance(value, int) else str(value)


def _drawn(table: Table) -> Drawn:
    """A table for the terminal: numbers stand on the right."""
    drawn = Drawn(title=table.caption or None, title_justify="left", box=None, pad_edge=False)
    drawn.padding = (0, 2, 0, 0)
    for heading, numeric in zip(table.columns, table.numeric, strict=True):
        drawn.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn
