"""From an error to what the program says of it, and its exit status."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, CycloptsError, UnknownCommandError
from cyclopts.argument import Argument
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from userdp.cli.commands import names
from userdp.cli.program import options_of
from userdp.errors import UserdpError
from userdp.hints import closest, in_shell
from userdp.out_of_memory import ran_out_of_memory

_REFUSED = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EISDIR),
        "free some space, or choose another place with --out",
    ),
    errno.EIO: "the disk or its connection fails: check it, and then give the command again",
}
"""What the system may answer whatever the program does, and the way out."""
_EVERYWHERE = ("--json", "--config", "--help")
_OTHER_NAMES = {
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "l2_norm": "l2_clip_norm",
    "item_norm": "item_clip_norm",
    "multiplier": "noise_multiplier",
    "the clip quantile": "clip_quantile",
    "the clip norm's learning rate": "clip_learning_rate",
}
"""What messages call an option that fills a field of another name."""

_ELSEWHERE = {
    "--batch": "--micro-batch",
    "--clip": "--l2-clip-norm",
    "--eps": "--epsilon",
    "--gpu": "--device cuda",
    "--lr": "--learning-rate",
    "--max-steps": "--steps",
    "--noise": "--noise-multiplier",
    "--output": "--out",
    "--parallel": "--jobs",
    "--rank": "--lora-rank",
    "--target-delta": "--delta",
    "--target-epsilon": "--epsilon",
    "--workers": "--jobs",
}
"""Words of other tools, which are no misspelling of ours."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is printed when a command fails.

    Args:
        error: what happened, and why it matters.
        hint: the way out, if one is known.
        status: the exit status.
    """

    error: str
    hint: str | None
    status: int

    @property
    def plain(self) -> dict[str, Any]:
        """What is printed under ``--json``."""
        return {"error": self.error, "hint": self.hint, "status": self.status}


def failure_of(error: Exception, app: App, tokens: Sequence[str]) -> Failure | None:
    """What to say of an error; None of one that is a fault of the program itself.

    Args:
        error: what a command raised.
        app: the program.
        tokens: what was typed, the command first.
    """
    command = tokens[0] if tokens and tokens[0] in names() else None
    found = () if command is None else tuple(app[command].assemble_argument_collection())
    own = _ours(error)
    if own is not None:
        options = _options(found)
        hint = None if own.hint is None else in_shell(own.hint, options)
        return Failure(in_shell(own.message, options), hint, own.exit_status)
    if isinstance(error, UnknownCommandError):
        return _unknown_command(tokens[0])
    if isinstance(error, CycloptsError):
        known = [name for one in found if one.parse for name in one.names]
        said, guess = _misuse(error, f"userdp {command or ''}".strip(), known)
        see = f"see `{' '.join(('userdp', *filter(None, [command])))} --help`"
        return Failure(said, see if guess is None else f"did you mean {guess}? {see}", 2)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        return Failure(
            f"the machine refused: {error.strerror}{where}",
            _REFUSED[error.errno],
            1,
        )
    if ran_out_of_memory(error):  # its words tell how much: the size of a cohort, say
        return Failure(
            "memory ran out; what was charged before stays charged",
            "go on, or begin again, with more memory for this process",
            1,
        )
    return None


def _ours(error: BaseException) -> UserdpError | None:
    """The error of userdp's own, also where the command-line library met it in a dataclass."""
    if isinstance(error, UserdpError):
        return error
    cause = error.__cause__ if isinstance(error, CycloptsError) else None
    return cause if isinstance(cause, UserdpError) else None


def _options(found: Iterable[Argument]) -> dict[str, str]:
    """Name of a field to the option that fills it."""
    own = options_of(found)
    others = {field: own[name] for field, name in _OTHER_NAMES.items() if name in own}
    return others | own


def _unknown_command(word: str) -> Failure:
    if word.startswith("-"):
        return Failure(f"no command stands before {word}", "see `userdp --help`", 2)
    close = closest(word, names())
    guess = "" if close is None else f"did you mean `userdp {close}`? "
    return Failure(f"there is no command {word!r}", f"{guess}see `userdp --help`", 2)


def _misuse(error: CycloptsError, command: str, known: Sequence[str]) -> tuple[str, str | None]:
    """What was typed that cannot be, and what was probably meant, among the ``known`` options."""
    if isinstance(error, MissingArgumentError):
        # Where one is missing, it may be that it was misspelled: the library looks for that later.
        for word in error.unused_tokens or ():
            if word.startswith("--") and word.partition("=")[0] not in known:
                return _unknown_option(word.partition("=")[0], command, known)
    if isinstance(error, UnknownOptionError):
        word = (error.token.keyword or error.token.value).partition("=")[0].strip("[]")
        if error.token.source != "cli":
            close = closest(f"--{word}".replace("_", "-"), known)
            guess = None if close is None else close.removeprefix("--").replace("-", "_")
            return f"{error.token.source} sets {word}, and {command} has no such option", guess
        return _unknown_option(word, command, known)
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        given = error.keyword or next((one.keyword for one in error.argument.tokens), None)
        if given is not None:
            return f"{given} needs a value", None
        return f"{command} needs {error.argument.name}", None
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice, and one value is wanted", None
    if isinstance(error, CoercionError) and error.token is not None:
        name = (
            error.token.keyword or (error.argument.name if error.argument else "a value")
        ).strip("[]")
        where = "" if error.token.source in ("", "cli") else f" in {error.token.source}"
        wanted, choices = _wanted(error.target_type)
        guess = closest(error.token.value, choices)
        return f"{name} must be {wanted}, got {error.token.value!r}{where}", guess
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        stray = error.unused_tokens[0]
        return f"{command} takes nothing more, and got {stray!r}", None
    return re.sub(r"\s+", " ", str(error)).strip(), None


def _unknown_option(word: str, command: str, known: Sequence[str]) -> tuple[str, str | None]:
    guess = _ELSEWHERE.get(word)
    if guess is None or guess.partition(" ")[0] not in known:
        guess = closest(word, [*known, *_EVERYWHERE])
    return f"{command} has no option {word}", guess


def _wanted(kind: Any) -> tuple[str, list[str]]:
    """A type in words, and its values where they are few."""
    if int in get_args(kind):  # what may be left out is `int | None`
        kind = int
    if get_origin(kind) is Literal:
        choices = [str(one) for one in get_args(kind)]
    elif isinstance(kind, type) and issubclass(kind, Enum):
        choices = [str(one.value) for one in kind]
    else:
        words: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
        return words.get(kind, f"a {getattr(kind, '__name__', kind)}"), []
    return f"one of {', '.join(choices)}", choices
