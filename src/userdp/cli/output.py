"""How commands speak: one JSON object, or sentences and tables, on stdout; all else on stderr."""

from __future__ import annotations

import json as json_library
import math
import os
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn

from userdp.claims import Claim
from userdp.claims.claims import printed_in_words, so_far_in_words
from userdp.commands.answer import Part, plain
from userdp.commands.progress import say
from userdp.errors import Interrupted, UserdpError, UserdpWarning
from userdp.reporting.facts import parts_of_claim
from userdp.reporting.table import MISSING, Table, table_of
from userdp.vocabulary import delta_up, round_up

_FOR_WHOM = {
    True: "Operator-only: exact facts about people and their text, which no epsilon covers.",
    False: "May be handed on: epsilon covers it.",
}
_SHARES = ("share", "spent", "share_given_back", "better_for")
stdout = Console(highlight=False)


def answer_of(result: Any, command: ModuleType, *, json: bool) -> int:
    """Print what a function of `userdp.commands` returned, and return the exit status.

    Its module may say it in words, as `Part` each; otherwise the values are shown by their names.
    Nothing is printed of None: another process says it.
    """
    if result is None:
        return 0
    values = plain(getattr(command, "to_dict", plain)(result))
    if json:
        sys.stdout.write(json_library.dumps(values, allow_nan=False) + "\n")
    else:
        show(command.in_words(result) if hasattr(command, "in_words") else [values])
        if type(mine := values.get("operator_only")) is bool:
            show([_FOR_WHOM[mine]])
    return int(False in (values.get("ok"), values.get("passed")))


def show(parts: Iterable[Part], *, console: Console = stdout) -> None:
    """Print the parts of an answer."""
    for part in parts:
        if isinstance(part, str):  # a terminal's own line breaks would cut words
            console.print(part, soft_wrap=not console.is_terminal, markup=False)
        elif isinstance(part, Table) and part.columns:
            console.print(_drawn(part))
        elif isinstance(part, Table):  # names and values, which are long at times
            width = max(len(name) for name, *_ in part.rows)
            lines = ["  ".join([name.ljust(width), *more]) for name, *more in part.rows]
            show([part.caption] * bool(part.caption) + lines, console=console)
        else:
            show(_simpler(part), console=console)


def _simpler(part: Any, caption: str = "") -> Iterator[Table | str]:
    """A claim, or values by their names, as sentences and tables."""
    if isinstance(part, Claim):
        told = (f"Claim: {part.headline}", so_far_in_words(part), printed_in_words(part))
        yield from (f"{words}." for words in told if words is not None)
        yield from filter(None, [parts_of_claim(part)])
    elif isinstance(part, Mapping):
        inner = {key: one for key, one in part.items() if _is_nested(one)}
        rows = [(_heading(key), _cell(key, part[key])) for key in part if key not in inner]
        if rows:
            yield Table(rows=rows, caption=caption)
        for key, one in inner.items():
            yield from _simpler(one, _heading(key))
    else:
        keys = dict.fromkeys(key for row in part for key in row if not _is_nested(row[key]))
        readers = {_heading(key): lambda row, key=key: _cell(key, row.get(key)) for key in keys}
        yield table_of(part, readers, caption=caption)


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
    """A table for the terminal: numbers on the right, what matters most in bold."""
    result = Drawn(title=escape(table.caption) or None, box=None, pad_edge=False)
    result.title_justify, result.padding = "left", (0, 2, 0, 0)
    for heading, numeric in zip(table.columns, table.numeric, strict=True):
        style = "bold" if heading == table.key else ""
        side: Any = "right" if numeric else "left"
        result.add_column(escape(heading), justify=side, style=style, overflow="fold")
    for number, row in enumerate(table.rows):
        result.add_row(*map(escape, row), style="bold" if number in table.strong else None)
    return result


def fail(failure: UserdpError, *, json: bool) -> int:
    """Print why a command failed, and return its exit status.

    Under ``--json`` it is an object on stdout, where who asked for one reads.
    """
    told = {"error": failure.message, "hint": failure.hint, "status": failure.exit_status}
    if json:
        sys.stdout.write(json_library.dumps(told) + "\n")
        return failure.exit_status
    say(f"error: {failure.message}")
    if failure.hint:
        say(f"hint: {failure.hint}")
    return failure.exit_status


def show_warning(message: Warning | str, *others: Any, **options: Any) -> None:
    """As `warnings.showwarning`: ours in the words of the command line, others as they are."""
    if isinstance(message, UserdpWarning):
        say(f"warning: {message.message}")
    else:
        sys.stderr.write(warnings.formatwarning(message, *others[:3]))


_RESUMED = ("train", "tune", "federate")
"""Commands that go on with ``--resume``; others, such as the demo, may have such a one in them."""


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
    program, added, way = "userdp", "", "run it again"
    if "TORCHELASTIC_RUN_ID" in os.environ:  # which hides how torchrun was started
        program = f"torchrun --nproc-per-node {os.environ['LOCAL_WORLD_SIZE']} -m userdp"
    message = error.message if isinstance(error, Interrupted) else "interrupted"
    line = f" {shlex.join(arguments)}"
    if isinstance(error, Interrupted) and error.resume and command in _RESUMED:
        way, added = "go on with", " --resume"
        line = line.replace(" --set run.charge_again=true", "")  # it would charge the plan again
    elif command == "demo":
        added = " --overwrite"
    return f"{message}; {way}: {program}{line.replace(added, '') if added else line}{added}"
