"""How an answer is printed: one JSON object, or sentences and tables, on stdout."""

from __future__ import annotations

import json as json_library
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from shutil import get_terminal_size
from typing import Any

from jinja2 import PackageLoader

from userdp.claims.claim_sentences import dry_run_in_words, foreseen_in_words
from userdp.core.codec import plain
from userdp.core.vocabulary import delta_up, round_up
from userdp.reporting.rendering import environment, visible
from userdp.reporting.table import Table, table_of

_LINE = "\0"
"""Begins each line of what is drawn, whose spaces count; those of a sentence do not."""
_TOLD: Any = {"epsilon": round_up, "delta": delta_up, "multiplier": str}
_TOLD |= dict.fromkeys(("share", "spent"), "{:.1%}".format)
"""How numbers are told, by the last word of their names: of noise all digits, to be copied."""


def show_answer(answer: Any, command: str, *, json: bool) -> int:
    """Print what a function of `userdp.commands` returned, and return the exit status.

    Nothing is printed of None: another process says it. Only a terminal needs line breaks, which
    would cut paths, and only a terminal obeys control characters, which a text may have.
    """
    if answer is None:
        return 0
    values = plain(answer)
    lines = [json_library.dumps(values, allow_nan=False)] if json else in_words(answer, command)
    if sys.stdout.isatty() and not json:
        how: Any = {"break_long_words": False, "break_on_hyphens": False}
        lines = (textwrap.fill(visible(one), get_terminal_size().columns, **how) for one in lines)
    print(*lines, sep="\n")
    return int(False in (values.get("ok"), values.get("passed")))


def in_words(answer: Any, command: str) -> Iterator[str]:
    """The lines of an answer, as the command's macro in ``words.j2`` says it.

    Args:
        answer: of a function of `userdp.commands`.
        command: its name.
    """
    macros: Any = _TEMPLATES.get_template("words.j2", globals=_KNOWN).module
    said = getattr(macros, command.split()[-1])(answer, values := plain(answer))
    for part in re.split(r"\n\s*\n", f"{said}\n\n{macros.for_whom(values)}"):
        yield from part.strip("\n").split(_LINE)[1:] or filter(None, [" ".join(part.split())])


def draw(of: Any, *, only: str = "", without: str = "", by: str = "", caption: str = "") -> str:
    """What stands by itself in a macro's text: a text as it is, values by their names, or rows.

    What is nested in values follows as a table of its own; of rows it is left out.

    Args:
        of: the text, values or rows.
        only: the names that are shown; all by default.
        without: names that are not shown.
        by: the heading of the names of rows, where ``of`` has them by names.
        caption: stands above the table.
    """
    if isinstance(of, str):
        return f"\n\n{_LINE}{of.replace(chr(10), _LINE)}\n\n"
    values = isinstance(of, Mapping) and not by
    rows = [of] if values else [{by: name, **row} for name, row in of.items()] if by else of
    known = [(key, one) for row in rows for key, one in row.items() if one is not None]
    shown = only.split() or {key for key, _ in known} - {*without.split()}
    nested = {key: one for key, one in known if key in shown and _has_rows(one)}
    keys = [key for key in dict(known) if key in shown and key not in nested]
    cells = [{key.replace("_", " "): _told(key, row.get(key)) for key in keys} for row in rows]
    table = table_of(cells, caption=caption)
    if values:  # names and values, below each other
        table = Table(rows=[*zip(table.columns, *table.rows, strict=True)], caption=caption)
    inner = [draw(nested[key], caption=key.replace("_", " ")) for key in nested if values]
    return "".join([draw(table.text) if keys else "", *inner])


def _has_rows(value: Any) -> bool:
    return isinstance(value[0] if value and isinstance(value, list | tuple) else value, Mapping)


def _told(key: str, value: Any) -> Any:
    """A value; ε and δ in words, rounded up, and shares in percent."""
    told = _TOLD.get(key.rpartition("_")[2])
    return value if told is None or value is None else told(float(value))


_TEMPLATES = environment().overlay(
    loader=PackageLoader("userdp", "cli"), autoescape=False, finalize=None
)
_KNOWN = {one.__name__: one for one in (draw, dry_run_in_words, foreseen_in_words, round_up)}
"""What the macros can call."""
