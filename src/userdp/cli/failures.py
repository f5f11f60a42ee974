"""From an error to what the program says of it, and its exit status."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any

from cyclopts import CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnusedCliTokensError,
)

from userdp.cli.commands import choices, module_of, options_of
from userdp.errors import FailureError, UseError, UserdpError
from userdp.hints import closest, likely
from userdp.out_of_memory import ran_out_of_memory

_SPACE = "free some space, or choose another place with --out"
_REFUSED = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _SPACE),
    **dict.fromkeys((errno.EACCES, errno.EROFS, errno.EISDIR), _SPACE),
    errno.EIO: "the disk or its connection fails: check it, and then give the command again",
}
"""What the system may answer whatever the program does, and the way out."""
_OTHER_NAMES = {
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "l2_norm": "l2_clip_norm",
    "item_clip_norm": "item_norm",
    "clip_stability": "stability",
    "multiplier": "noise_multiplier",
    "the clip quantile": "quantile",
}
"""What messages call an option that fills a field of another name."""


def failure_of(error: Exception, command: str | None) -> UserdpError | None:
    """What to say of an error, in options; None of one that is a fault of the program itself."""
    cause = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(cause, UserdpError):
        options = {} if command is None else _typed(command)
        hint = cause.hint and in_shell(cause.hint, options)
        return type(cause)(in_shell(cause.message, options), hint=hint)
    if isinstance(error, CycloptsError):
        told, guess = _misuse(error, f"userdp {command}")
        return UseError(told, hint=f"{likely(guess)}see `userdp {command} --help`")
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        return FailureError(
            f"the machine refused: {error.strerror}{where}", hint=_REFUSED[error.errno]
        )
    if ran_out_of_memory(error):  # its words tell how much: the size of a cohort, say
        return FailureError(
            "memory ran out; what was charged before stays charged",
            hint="go on, or begin again, with more memory for this process",
        )
    return None


def _typed(command: str) -> dict[str, str]:
    """What is typed to fill a field, by what messages call the field."""
    sections: dict[str, Any] = getattr(module_of(command), "sections", dict)()
    places = reversed(sections.items())  # of two settings of one name the first is meant
    typed = {name: f"{at}.{name}" for at, fields in places for name in fields}
    typed |= {one.field: one.name for one in options_of(command) if not one.place}
    return {word: typed[name] for word, name in _OTHER_NAMES.items() if name in typed} | typed


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


def _misuse(error: CycloptsError, command: str) -> tuple[str, str | None]:
    """What was typed that cannot be, and what was probably meant."""
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        given = error.keyword or next((one.keyword for one in error.argument.tokens), None)
        told = f"{command} needs {error.argument.name}"
        return (told if given is None else f"{given} needs a value"), None
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice, and one value is wanted", None
    if isinstance(error, CoercionError) and error.token is not None:
        name = error.token.keyword or (error.argument.name if error.argument else "a value")
        kind: Any = error.target_type
        words = {int: "a whole number", float: "a number", bool: "true or false"}
        wanted = words.get(kind, f"one of {', '.join(choices(kind))}")
        guess = closest(error.token.value, choices(kind))
        return f"{name} must be {wanted}, got {error.token.value!r}", guess
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{command} takes nothing more, and got {error.unused_tokens[0]!r}", None
    return " ".join(str(error).split()), None
