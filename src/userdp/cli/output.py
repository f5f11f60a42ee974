"""How commands speak: one JSON object, or sentences and tables, on stdout; all else on stderr."""

from __future__ import annotations

import json as json_library
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn

from userdp.commands.progress import stderr
from userdp.errors import Interrupted, UserdpWarning
from userdp.files import finite
from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.cli.failures import Failure

stdout = Console(highlight=False)


def answer_of(result: Any, command: ModuleType, *, json: bool) -> int:
    """Print what a function of `userdp.commands` returned, and return the exit status.

    Its module says it in words; the values and the exit status are the result's own, or its module
    has them too. Nothing is printed of None: another process says it.
    """
    if result is None:
        return 0
    status = getattr(result, "status", 0)
    status = command.status(result) if hasattr(command, "status") else status
    if not json:
        return show(command.in_words(result), status=status)
    told = getattr(result, "to_dict", None)
    values = result if isinstance(result, Mapping) else told() if told else command.to_dict(result)
    sys.stdout.write(json_library.dumps(finite(values), allow_nan=False) + "\n")
    return int(status)


def show(parts: Iterable[Table | str], *, status: int = 0, console: Console = stdout) -> int:
    """Print sentences and tables, and return the exit status."""
    for part in parts:
        if isinstance(part, Table):
            console.print(_drawn(part))
        else:  # a terminal's own line breaks would cut words
            console.print(part, soft_wrap=not console.is_terminal, markup=False)
    return status


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
        result.add_row(*map(escape, row), style="bold" if number in table.strong else None)
        if number in table.breaks:
            result.add_row()
    return result


def fail(failure: Failure, *, json: bool) -> int:
    """Print why a command failed, and return its exit status.

    Under ``--json`` it is an object on stdout, where who asked for one reads.
    """
    if json:
        sys.stdout.write(json_library.dumps(failure.plain) + "\n")
        return failure.status
    stderr.print(f"[bold red]error:[/] {escape(failure.error)}", soft_wrap=True)
    if failure.hint:
        stderr.print(f"[bold]hint:[/] {escape(failure.hint)}", soft_wrap=True)
    return failure.status


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
        stderr.print(f"[bold yellow]warning:[/] {escape(message.message)}", soft_wrap=True)
    else:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        (file or sys.stderr).write(text)


_RESUMED = ("train", "tune", "federate")
"""Commands that go on with ``--resume``; others, such as the demo, may have such a one in them."""
_ONCE = ("--resume", "run.charge_again=true")
"""Words that are not repeated: the first is added anew; the second would charge the plan again."""


def last_words(
    error: KeyboardInterrupt, command: str | None, arguments: Sequence[str]
) -> str | None:
    """Where an interrupt left things, and the line that goes on.

    None where another process of the same run says it.

    >>> line = ["train", "store", "--out", "my run"]
    >>> last_words(Interrupted("after step 24 of 100", resume=True), "train", line)
    "interrupted after step 24 of 100; go on with: userdp train store --out 'my run' --resume"
    >>> last_words(KeyboardInterrupt(), "store stats", ["store", "stats", "mail"])
    'interrupted; run it again: userdp store stats mail'
    """
    if os.environ.get("RANK", "0") != "0":
        return None
    # torchrun hides how it was started, but for one machine.
    processes = os.environ.get("LOCAL_WORLD_SIZE")
    program = ["userdp"]
    if "TORCHELASTIC_RUN_ID" in os.environ and processes is not None:
        program = ["torchrun", "--nproc-per-node", processes, "-m", "userdp"]
    message, way = "interrupted", "run it again"
    if isinstance(error, Interrupted):
        message = error.message
    line = [*arguments]
    if isinstance(error, Interrupted) and error.resume and command in _RESUMED:
        while _ONCE[1] in line:
            at = line.index(_ONCE[1])
            del line[at - 1 : at + 1]
        line = [word for word in line if word not in _ONCE] + ["--resume"]
        way = "go on with"
    elif command == "demo":
        line = [word for word in line if word != "--overwrite"] + ["--overwrite"]
    return f"{message}; {way}: {shlex.join([*program, *line])}"
