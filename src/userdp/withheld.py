"""Errors of other people's code, told without their words: those may quote somebody's text.

A tokenizer names the text that it could not read, a database the row, a dictionary the key that it
lacks, which may be a user's id. What is printed of such an error, or written to a log, is its class
and the place in the code; its words stay with the error itself, for who looks there on purpose.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from userdp.errors import FailureError, MadeUpRowsError, UserdpError, UserdpWarning, printable
from userdp.out_of_memory import ran_out_of_memory

P = ParamSpec("P")
T = TypeVar("T")

_OWN: Final = Path(__file__).parent
_LONGEST: Final = 200
"""Letters that are told of another library's error."""


class WithheldError(FailureError):
    """An error that nobody foresaw, without its words; its trace is the one that it had.

    Only what it tells travels: pickled, as for a process that waits for another, or copied, it no
    longer holds the error itself.

    Args:
        withheld: the error itself; None in another process than the one where it was raised. Its
            words may quote people's text: operator-only.
    """

    withheld: BaseException | None

    def __init__(self, withheld: BaseException) -> None:
        if ran_out_of_memory(withheld):  # its words tell how much: the size of a cohort, say
            told = f"memory ran out ({in_code(withheld)}); what was charged before stays charged"
            hint = "go on, or begin again, with more memory for this process"
        else:
            told = (
                f"{in_code(withheld)}; its words are withheld, since they may quote people's text"
            )
            hint = (
                "to read them, catch this error and look at its attribute `withheld`, or call it "
                "on made-up text"
            )
        super().__init__(told, hint=hint)
        self.withheld = withheld

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str | None]]:
        return _that_tells, (self.message, self.hint)


def _that_tells(message: str, hint: str | None) -> WithheldError:
    """A `WithheldError` of these words, of which the error itself is not known here."""
    error = WithheldError.__new__(WithheldError)
    FailureError.__init__(error, message, hint=hint)
    error.withheld = None
    return error


@contextmanager
def withheld() -> Iterator[None]:
    """What the block raises quotes no text and no id.

    Guarantee: whatever prints an error that leaves the block, with its trace and its causes, prints
    only words of userdp's own, lines of source code, names of classes, and words of whoever called
    userdp. Four kinds pass as they are: errors of the operating system, whose words are its own and
    a path; a ``TypeError`` that Python raises in our own lines, as for an argument that no function
    has; errors of the caller's own that leave `calling`; and errors of userdp, once their causes
    are cut off (but of code that failed on made-up rows, which are nobody's).

    Raises:
        WithheldError: in place of any other error.
    """
    try:
        yield
    except (UserdpError, UserdpWarning) as error:  # a warning, where somebody makes it an error
        if not isinstance(error, MadeUpRowsError):
            _cut(error)
        raise
    except Exception as error:  # whatever other people's code raises
        if isinstance(error, OSError) and error.errno is not None:
            _cut(error)
            raise
        if type(error) is TypeError and _is_own(error.__traceback__):
            _cut(error)
            raise
        if _is_callers(error.__traceback__):
            raise
        raise WithheldError(error).with_traceback(error.__traceback__) from None


def withholding(function: Callable[P, T]) -> Callable[P, T]:
    """A function that raises what `withheld` lets out, and nothing else."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        with withheld():
            return function(*arguments, **options)

    return call


def calling(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call what the caller of userdp gave: an error by which it says stop is their own to read.

    Only for a function that is told nobody's text, such as how far the work is: `withheld` lets
    through what it raises. What userdp was handling meanwhile is no context of that error.
    """
    during = sys.exception()
    try:
        return function(*arguments, **options)
    except Exception as error:
        last: BaseException = error
        while last.__context__ is not None and last.__context__ is not during:
            last = last.__context__
        last.__context__ = None
        raise


def in_code(error: BaseException) -> str:
    """Class and place of an error, and none of its words: ``KeyError at store.py:31``.

    >>> in_code(KeyError("ann@example.org")), in_code(type("Dear Ann", (OSError,), {})())
    ('KeyError', 'OSError')
    """
    name = _class_of(error)
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return name
    return f"{name} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"


def in_kind(error: BaseException) -> str:
    """What kind of error it is, for the middle of a sentence.

    Of an error of the operating system its own words, without a path; of any other its class.

    >>> in_kind(FileNotFoundError(2, "No such file or directory", "mail/ann.mbox"))
    'No such file or directory'
    >>> in_kind(ValueError("cannot convert 'Dear Ann'"))
    'ValueError'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _class_of(error)


def _class_of(error: BaseException) -> str:
    """Its class, or the first one above it that stands in a module by that name.

    A class that a program makes while it runs may be called by anything, as by somebody's text.
    """
    for kind in type(error).__mro__:
        name: str = kind.__name__
        if getattr(sys.modules.get(kind.__module__), name, None) is kind:
            return name
    return "Exception"


def in_short(error: BaseException) -> str:
    """The first line of a library's own words on a file that is nobody's text, short and printable.

    A library that refuses a model's settings quotes them, whatever somebody wrote there.

    >>> in_short(ValueError("no such layer: '\\x1b[31m'\\nsee the docs"))
    "no such layer: '\\\\x1b[31m'"
    """
    lines = str(error).splitlines() or [type(error).__name__]
    return printable(lines[0][:_LONGEST])


def _cut(error: BaseException) -> None:
    """Take from an error the causes that are not of userdp's own, and whatever came before them."""
    seen: BaseException | None = error
    while seen is not None:
        cause = seen.__cause__
        if cause is None and not seen.__suppress_context__:
            cause = seen.__context__
        if cause is None:
            return
        if not isinstance(cause, UserdpError):
            seen.__cause__ = None  # which also keeps the context from being printed
            return
        seen = cause


def _is_callers(trace: TracebackType | None) -> bool:
    """Whether an error came out of what `calling` called."""
    return any(frame.f_code is calling.__code__ for frame, _ in traceback.walk_tb(trace))


def _is_own(trace: TracebackType | None) -> bool:
    """Whether an error was raised in a line of userdp."""
    frames = traceback.extract_tb(trace)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(_OWN)
