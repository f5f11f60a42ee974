"""How commands speak: one JSON object, or sentences and tables, on stdout; all else on stderr."""

from __future__ import annotations

import json as json_library
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn

from userdp.commands.progress import say, stderr
from userdp.errors import UserdpWarning
from userdp.files import finite
from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.cli.failures import Failure

stdout = Console(highlight=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command returns; `show` prints it.

    Args:
        values: printed under ``--json``, as one object; infinite numbers become the string "inf".
        parts: printed without: sentences and tables, made only then.
        status: the exit status.
    """

    values: Mapping[str, Any]
    parts: Iterable[Table | str]
    status: int = 0


def answer_of(result: Any, command: ModuleType) -> Answer:
    """What a function of `userdp.commands` returned, as the line that called it prints it.

    Its module says it in words; the values and the exit status are the result's own, or its module
    has them too.
    """
    if isinstance(result, Mapping):
        values = result
    else:
        values = result.to_dict() if hasattr(result, "to_dict") else command.to_dict(result)
    status = getattr(result, "status", 0)
    if hasattr(command, "status"):
        status = command.status(result)
    return Answer(values=values, parts=command.in_words(result), status=status)


def show(answer: Answer, *, json: bool, console: Console = stdout) -> int:
    """Print what a command returned, and return its exit status."""
    if json:
        sys.stdout.write(json_library.dumps(finite(answer.values), allow_nan=False) + "\n")
        return answer.status
    for part in answer.parts:
        if isinstance(part, Table):
            console.print(_drawn(part))
        else:
            # A terminal's own line breaks would cut words.
            console.print(part, soft_wrap=not console.is_terminal, markup=False)
    return answer.status


def fail(failure: Failure, *, json: bool) -> int:
    """Print why a command failed, and return its exit status.

    Under ``--json`` it is an object on stdout, where who asked for one reads; else it is words on
    stderr.
    """
    if json:
        sys.stdout.write(json_library.dumps(failure.plain) + "\n")
    else:
        print_error(failure.error, failure.hint)
    return failure.status


def for_whom(*, operator_only: bool, why: str) -> str:
    """For whose eyes a command's output is, in one sentence.

    Args:
        operator_only: what was read is covered by no ε.
        why: what the output is, in words that follow a colon.
    """
    whom = "Operator-only" if operator_only else "May be handed on"
    return f"{whom}: {why}."


def _drawn(table: Table) -> Drawn:
    """A table for the terminal: numbers on the right, what matters most in bold."""
    result = Drawn(
        title=escape(table.caption) or None,
        title_justify="left",
        show_header=bool(table.columns),
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    headings = table.columns or [""] * len(table.numeric)
    for heading, numeric in zip(headings, table.numeric, strict=True):
        result.add_column(
            escape(heading),
            justify="right" if numeric and table.columns else "left",
            style="bold" if heading and heading == table.key else "",
            overflow="fold",
        )
    for number, row in enumerate(table.rows):
        style = "bold" if number in table.strong else None
        result.add_row(*map(escape, row), style=style)
        if number in table.breaks:
            result.add_row()
    return result


def print_error(message: str, hint: str | None = None) -> None:
    """An error as ``error: …`` and, where there is a way out, ``hint: …``."""
    stderr.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    if hint:
        stderr.print(f"[bold]hint:[/] {escape(hint)}", soft_wrap=True)


def print_warning(message: str | None) -> None:
    """Something that the operator should know before it happens, as ``warning: …``, if anything."""
    if message is not None:
        stderr.print(f"[bold yellow]warning:[/] {escape(message)}", soft_wrap=True)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """As `warnings.showwarning`: ours in the words of the command line, others as they are."""
    if isinstance(message, UserdpWarning):
        print_warning(message.message)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        (file or sys.stderr).write(text)


def print_note(message: str) -> None:
    """Something that happens, or is to be known beside the result."""
    say(message)
