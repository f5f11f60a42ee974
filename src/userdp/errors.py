"""The two ways a call can fail, each with what happened, why it matters and the way out."""

from __future__ import annotations


class UserdpError(Exception):
    """Base of the errors that userdp raises on purpose.

    Args:
        message: what happened, what was got, and why it matters; starts in lower case.
        hint: the way out, as a sentence or a command to run; shown after ``hint:``.
    """

    exit_status = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UseError(UserdpError, ValueError):
    """Bad use: the caller asked for something that cannot be right. Exit status 2."""

    exit_status = 2


class FailureError(UserdpError, RuntimeError):
    """The call was right and the machine could not do it. Exit status 1."""

    exit_status = 1
