"""From an error to what the program says of it, and its exit status."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from cyclopts import App, CycloptsError, UnknownCommandError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from userdp.cli.commands import module_of, names, options_of
from userdp.errors import UserdpError
from userdp.hints import closest, in_shell
from userdp.out_of_memory import ran_out_of_memory

_SPACE = "free some space, or choose another place with --out"
_REFUSED = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _SPACE),
    **dict.fromkeys((errno.EACCES, errno.EROFS, errno.EISDIR), _SPACE),
    errno.EIO: "the disk or its connection fails: check it, and then give the command again",
}
"""What the system may answer whatever the program does, and the way out."""
_EVERYWHERE = ("--json", "--config", "--help")
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
_ELSEWHERE = {
    "--batch": "--micro-batch",
    "--batch-size": "--micro-batch",
    "--clip": "--l2-clip-norm",
    "--eps": "--epsilon",
    "--gpu": "--device cuda",
    "--lr": "--learning-rate",
    "--max-steps": "--steps",
    "--noise": "--noise-multiplier",
    "--output": "--out",
    "--rank": "--lora-rank",
    "--target-delta": "--delta",
    "--target-epsilon": "--epsilon",
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
        return asdict(self)


def failure_of(
    error: Exception, app: App, command: str | None, tokens: Sequence[str]
) -> Failure | None:
    """What to say of an error; None of one that is a fault of the program itself.

    Args:
        error: what a command raised.
        app: the program.
        command: the one that was called, if it is one.
        tokens: what was typed.
    """
    sections: dict[str, Any] = (
        {} if command is None else getattr(module_of(command), "sections", dict)()
    )
    cause = error.__cause__ if isinstance(error, CycloptsError) else error
    if isinstance(cause, UserdpError):
        options = {} if command is None else _options(app, command)
        for at, fields in sections.items():
            for name in fields:
                options.setdefault(name, f"{at}.{name}")
        others = {word: options[name] for word, name in _OTHER_NAMES.items() if name in options}
        hint = None if cause.hint is None else in_shell(cause.hint, others | options)
        return Failure(in_shell(cause.message, others | options), hint, cause.exit_status)
    if isinstance(error, UnknownCommandError) or (command is None and tokens):
        word = " ".join(tokens[: 2 if tokens[0] == "store" else 1])
        if word.startswith("-"):
            return Failure(f"no command stands before {word}", "see `userdp --help`", 2)
        close = closest(word, names()) or closest(f"store {word}", names())
        way = "" if close is None else f"did you mean `userdp {close}`? "
        return Failure(f"there is no command {word!r}", f"{way}see `userdp --help`", 2)
    if isinstance(error, CycloptsError) and command is not None:
        fields = [f"--set {at}.{name}=…" for at, found in sections.items() for name in found]
        known = [*_options(app, command).values(), *_EVERYWHERE]
        told, guess = _misuse(error, f"userdp {command}", known, fields)
        see = f"see `userdp {command} --help`"
        return Failure(told, see if guess is None else f"did you mean {guess}? {see}", 2)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        where = f" ({error.filename})" if error.filename else ""
        return Failure(f"the machine refused: {error.strerror}{where}", _REFUSED[error.errno], 1)
    if ran_out_of_memory(error):  # its words tell how much: the size of a cohort, say
        return Failure(
            "memory ran out; what was charged before stays charged",
            "go on, or begin again, with more memory for this process",
            1,
        )
    return None


def _options(app: App, command: str) -> dict[str, str]:
    for word in command.split():
        app = app[word]
    return options_of(app.assemble_argument_collection())


def _misuse(
    error: CycloptsError, command: str, known: Sequence[str], fields: Sequence[str]
) -> tuple[str, str | None]:
    """What was typed that cannot be, and what was probably meant."""
    if isinstance(error, MissingArgumentError):
        # Where one is missing, it may be that it was misspelled: the library looks for that later.
        for word in error.unused_tokens or ():
            if word.startswith("--") and word.partition("=")[0] not in known:
                return _unknown_option(word.partition("=")[0], command, known, fields)
        if error.argument is not None:
            given = error.keyword or next((one.keyword for one in error.argument.tokens), None)
            if given is not None:
                return f"{given} needs a value", None
            return f"{command} needs {error.argument.name}", None
    if isinstance(error, UnknownOptionError):
        word = (error.token.keyword or error.token.value).partition("=")[0].strip("[]")
        if error.token.source == "cli":
            return _unknown_option(word, command, known, fields)
        word = word.rpartition(".")[2]
        close = closest(f"--{word}".replace("_", "-"), known)
        guess = None if close is None else close.removeprefix("--").replace("-", "_")
        return f"{error.token.source} sets {word}, and {command} has no such option", guess
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given twice, and one value is wanted", None
    if isinstance(error, CoercionError) and error.token is not None:
        name = error.token.keyword or (error.argument.name if error.argument else "a value")
        where = "" if error.token.source in ("", "cli") else f" in {error.token.source}"
        wanted, choices = _wanted(error.target_type)
        guess = closest(error.token.value, choices)
        return f"{name.strip('[]')} must be {wanted}, got {error.token.value!r}{where}", guess
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{command} takes nothing more, and got {error.unused_tokens[0]!r}", None
    return re.sub(r"\s+", " ", str(error)).strip(), None


def _unknown_option(
    word: str, command: str, known: Sequence[str], fields: Sequence[str]
) -> tuple[str, str | None]:
    guess = _ELSEWHERE.get(word)
    if guess is None or guess.partition(" ")[0] not in known:
        name = "." + word.removeprefix("--").replace("-", "_") + "="
        guess = next((one for one in fields if name in one), None) or closest(word, known)
    return f"{command} has no option {word}", guess


def _wanted(kind: Any) -> tuple[str, list[str]]:
    """A type in words, and its values where they are few."""
    kind = int if int in get_args(kind) else kind  # what may be left out is `int | None`
    if get_origin(kind) is Literal:
        choices = [str(one) for one in get_args(kind)]
    elif isinstance(kind, type) and issubclass(kind, Enum):
        choices = [str(one.value) for one in kind]
    else:
        words = {int: "a whole number", float: "a number", bool: "true or false"}
        return words.get(kind, f"a {getattr(kind, '__name__', kind)}"), []
    return f"one of {', '.join(choices)}", choices
