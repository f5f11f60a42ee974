"""How a call can fail, each with what happened, why it matters and the way out.

It was asked for something that cannot be right, the machine could not do it, or somebody
interrupted it. `ran_out_of_memory` knows one kind of failure whatever library raised it.

A message names options as the command line spells them: ``--micro-batch`` is ``micro_batch`` in
Python, and ``--set learning.precision=…`` the field ``precision`` of what is learned.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final

_LONGEST = 200
"""Letters of another library's words in a message of ours."""

_DISK = "check the disk, free some space there, or choose another place with --out"

_OUT_OF_MEMORY: Final = re.compile(
    r"(\[enforce fail at \w+\.cpp:\d+\].{0,40})?DefaultCPUAllocator: (can't allocate|not enough)"
    r"|(CUDA|CUDA error:|MPS backend) out of memory"
    r"|\w+ error: (CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
    r"|std::bad_alloc"
)
"""How a message begins that PyTorch writes into a plain `RuntimeError`; only its allocators on
devices have a class. Further on in a message they may be the words of somebody whose text it
quotes."""


def printable(text: str) -> str:
    r"""``text`` with whatever a terminal would obey, or no file could hold, written out.

    Errors name paths and words that somebody else may have chosen.

    >>> printable("no store at \x1b[31m")
    'no store at \\x1b[31m'
    """
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def likely(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint: which of ``known`` was probably meant; empty where none is like it.

    Args:
        word: what somebody wrote.
        known: what can be meant; of a mapping a key, and its value is named.

    >>> likely("jsonnl", ["csv", "jsonl"]), likely("xml", ["csv", "jsonl"])
    ('did you mean jsonl? ', '')
    """
    named = known if isinstance(known, Mapping) else {one: one for one in known}
    near = get_close_matches(word, named, n=1)
    return f"did you mean {named[near[0]]}? " if near else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """The hint where ``word`` is none of ``known``.

    >>> one_of("jsonnl", ["csv", "jsonl"])
    'did you mean jsonl? one of: csv, jsonl'
    """
    return f"{likely(word, known := list(known))}one of: {', '.join(known)}"


def kind_of(error: BaseException) -> str:
    """What kind of error of another library it is, for the middle of a message of ours.

    Of an error of the operating system its own words, without a path; of any other its class: a
    library's words on a file of records may quote the records, and our messages quote no text. The
    error itself is the cause of ours, in full.

    >>> kind_of(FileNotFoundError(2, "No such file or directory", "mail/ann.mbox"))
    'No such file or directory'
    >>> kind_of(ValueError("cannot convert 'Dear Ann'"))
    'ValueError'
    """
    return getattr(error, "strerror", None) or type(error).__name__


def in_short(error: BaseException) -> str:
    """The first line of a library's own words on a file that is nobody's text, such as a model.

    >>> in_short(ValueError("no such layer\\nsee the docs"))
    'no such layer'
    """
    return (str(error).splitlines() or [type(error).__name__])[0][:_LONGEST]


class UserdpError(Exception):
    """Base of the errors that userdp raises on purpose.

    Message and hint are `printable`.

    Args:
        message: what happened, what was got, and why it matters; starts in lower case.
        hint: the way out, as a sentence or a command to run; shown after ``hint:``.
    """

    exit_status = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = printable(message)
        self.hint = None if hint is None else printable(hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``."""
        return {"error": self.message, "hint": self.hint, "status": self.exit_status}


class UseError(UserdpError, ValueError):
    """Bad use: the caller asked for something that cannot be right. Exit status 2."""

    exit_status = 2


class FailureError(UserdpError, RuntimeError):
    """The call was right and the machine could not do it. Exit status 1."""


def as_ours(error: UserdpError | OSError) -> UserdpError:
    """The error itself, or a refusal of the operating system as a message for people.

    Raises:
        OSError: it is a library's, of no file: a fault, whose traceback helps to mend it.
    """
    if isinstance(error, UserdpError):
        return error
    if error.errno is None:
        raise error
    where = f" ({error.filename})" if error.filename else ""
    return FailureError(
        f"the machine refused: {error.strerror or error}{where}",
        hint=None if isinstance(error, BrokenPipeError) else _DISK,
    )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped an operation where nothing is lost by it. Exit status 130.

    A `KeyboardInterrupt` and no `UserdpError`, so that a script that goes on after an error
    does not go on after this.

    Args:
        place: where it stopped, in words that follow "interrupted", such as "after step 24 of 100".
        resume: whether it goes on from there, or by which other argument than ``resume=True``; else
            the same call begins again.
    """

    exit_status = 130

    def __init__(self, place: str, *, resume: bool | str = False) -> None:
        super().__init__(place)
        self.place, self.resume = place, resume

    def __str__(self) -> str:
        how = "resume=True" if self.resume is True else self.resume
        way = f"go on with the same call and {how}" if how else "call it again"
        return f"interrupted {self.place}; {way}"


class UserdpWarning(UserWarning):
    """Something that the operator should know before it happens."""


def warn(message: str | None, *, stacklevel: int = 2) -> None:
    """Warn of ``message``, if there is one; ``stacklevel`` is 2 for the caller's own caller."""
    if message is not None:
        warnings.warn(UserdpWarning(printable(message)), stacklevel=stacklevel + 1)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is a failed allocation, on the CPU or on a device.

    >>> ran_out_of_memory(MemoryError()), ran_out_of_memory(RuntimeError("std::bad_alloc"))
    (True, True)
    >>> ran_out_of_memory(RuntimeError("shapes differ"))
    False
    >>> ran_out_of_memory(RuntimeError("cannot parse 'CUDA out of memory'"))
    False
    """
    # By its name: this module is read where torch must not be imported.
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or (isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.match(str(error))))
