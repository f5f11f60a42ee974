"""How commands speak: one JSON object, or sentences and tables, on stdout; all else on stderr."""

from __future__ import annotations

import errno
import json as json_library
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Drawn

from userdp.claims import Claim
from userdp.claims.words import foreseen_in_words
from userdp.cli.commands import options_of, sections_of
from userdp.commands.progress import say
from userdp.core.codec import plain
from userdp.core.errors import FailureError, Interrupted, UserdpError, UserdpWarning
from userdp.core.out_of_memory import ran_out_of_memory
from userdp.core.vocabulary import delta_up, round_up
from userdp.data.user_ids import near_hint
from userdp.reporting.facts import parts_of_claim
from userdp.reporting.table import MISSING, Table, table_of

Part: TypeAlias = str | Table | Claim | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What an answer in words is made of: a text, a table, a claim, named values, or rows."""
_FOR_WHOM = {
    True: "Operator-only: exact facts about people and their text, which no epsilon covers.",
    False: "May be handed on: epsilon covers it.",
}
_SHARES = ("share", "spent", "share_given_back", "better_for")
_WORDS = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    autoescape=False,  # for a terminal
)
stdout = Console(highlight=False)


def show_answer(answer: Any, command: str, *, json: bool) -> int:
    """Print what a function of `userdp.commands` returned, and return the exit status.

    Nothing is printed of None: another process says it.
    """
    if answer is None:
        return 0
    told = plain(answer)
    if json:
        sys.stdout.write(json_library.dumps(told, allow_nan=False) + "\n")
    else:
        show(in_words(answer, command, told))
        if type(mine := told.get("operator_only")) is bool:
            show([_FOR_WHOM[mine]])
    return int(False in (told.get("ok"), told.get("passed")))


def in_words(answer: Any, command: str, told: Any = None) -> Iterator[Part]:
    """What ``words.j2`` says of an answer: paragraphs, and what it draws between them.

    A command without a macro there shows its values by their names.

    Args:
        answer: of a function of `userdp.commands`.
        command: its name.
        told: the object of ``--json``; by default the answer is one itself.
    """
    told, drawn = answer if told is None else told, list[Part]()

    def draw(part: Part) -> str:
        drawn.append(part)
        return f"\n\n\0{len(drawn) - 1}\n\n"

    words: Any = _WORDS.get_template("words.j2").make_module({"draw": draw})
    macro = getattr(words, command.split()[-1], lambda answer, told: draw(told))
    for paragraph in re.split(r"\n\s*\n", macro(answer, told)):
        text = " ".join(paragraph.split())
        if text:
            yield drawn[int(text[1:])] if text.startswith("\0") else text


def _kept(of: Any, wanted: Callable[[str, Any], bool]) -> Any:
    """A mapping, or rows, with some of the keys only."""
    if isinstance(of, Mapping):
        return {key: one for key, one in of.items() if wanted(key, one)}
    return [_kept(row, wanted) for row in of]


def _pairs(of: Mapping[str, Any], names: str) -> list[dict[str, Any]]:
    """Lists of equal length as rows."""
    keys = names.split()
    return [dict(zip(keys, row, strict=True)) for row in zip(*map(of.get, keys), strict=True)]


_WORDS.globals |= {
    "only": lambda names, of: _kept(of, lambda key, _: key in names.split()),
    "without": lambda names, of: _kept(of, lambda key, _: key not in names.split()),
    "flat": lambda of: _kept(of, lambda _, one: not isinstance(one, dict | list)),
    "named": lambda name, of: [{name: key, **row} for key, row in of.items()],
    "joined": lambda first, second: first | (second or {}),
    "pairs": _pairs,
    "foreseen": foreseen_in_words,
    "near_hint": near_hint,
    "round_up": round_up,
}


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
        yield from (f"{words}." for words in (f"Claim: {part.headline}", *part.notes))
        yield from filter(None, [parts_of_claim(part)])
    elif isinstance(part, Mapping):
        there = {key: one for key, one in part.items() if one is not None}
        inner = {key: one for key, one in there.items() if _is_nested(one)}
        rows = [(_heading(key), _cell(key, there[key])) for key in there if key not in inner]
        if rows:
            yield Table(rows=rows, caption=caption)
        for key, one in inner.items():
            yield from _simpler(one, _heading(key))
    else:
        cells = (cell for row in part for cell in row.items())
        keys = dict.fromkeys(key for key, one in cells if one is not None and not _is_nested(one))
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


_REFUSED = {errno.EIO: "the disk or its connection fails: check it, and give the command again"}
"""What the system may answer whatever the program does, and the way out."""
for _number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EISDIR):
    _REFUSED[_number] = "free some space, or choose another place with --out"


def failure_of(error: Exception, command: str | None) -> UserdpError | None:
    """What to say of an error, in options; None of one that is a fault of the program itself."""
    if isinstance(error, UserdpError):
        options = {} if command is None else _typed(command)
        hint = error.hint and in_shell(error.hint, options)
        return type(error)(in_shell(error.message, options), hint=hint)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        told = f"the machine refused: {error.strerror}{where}"
        return FailureError(told, hint=_REFUSED[error.errno])
    if ran_out_of_memory(error):  # its words tell how much: the size of a cohort, say
        return FailureError(
            "memory ran out; what was charged before stays charged",
            hint="go on, or begin again, with more memory for this process",
        )
    return None


def _typed(command: str) -> dict[str, str]:
    """What is typed to fill a field, by what messages call the field."""
    places = reversed([*sections_of(command).items()])  # of two settings of one name the first
    typed = {name: f"{at}.{name}" for at, fields in places for name in fields}
    return typed | {one.field: one.name for one in options_of(command) if not one.place}


def in_shell(text: str, options: Mapping[str, str]) -> str:
    """A message for who typed a command: what it calls by a field's name becomes the option.

    A name of several words is the option wherever it stands by itself; a name of one word, which
    may be a word of the sentence, only where it begins the message, or has its value in brackets.

    Args:
        text: the message.
        options: name of a field to the command's own option.

    >>> in_shell("lora_rank must be 1 or more", {"lora_rank": "--lora-rank"})
    '--lora-rank must be 1 or more'
    >>> in_shell("width (5) must be a multiple of the width of a head", {"width": "learning.width"})
    'learning.width (5) must be a multiple of the width of a head'
    """
    for name, option in options.items():
        if "_" in name:
            place = rf"(?<![-\w./\"'`=])(?<!the ){name}(?![\w(/\"'=.-])"
        else:
            place = rf"^{name}(?= must\b)|(?:^|(?<=\bof )|(?<=\bmost )){name}(?= \([\d.]+\))"
        text = re.sub(place, option, text)
    return text


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
