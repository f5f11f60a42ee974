"""Ctrl-C and SIGTERM, heard between two steps of a long operation and not in the middle of one.

A step of training that has been charged is paid for, whether its update is applied or not. So the
first signal only sets a flag: the operation finishes its step, writes down what there is to write,
and raises `userdp.core.errors.Interrupted`. A second signal ends it at once, as signals usually do.

Only the main thread of a process can be asked; elsewhere signals do what they did before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Final

from userdp.core.errors import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_SAME = 1.0
"""Signals within so many seconds are one: a terminal sends Ctrl-C to a process and to its parent,
which may pass it on (torchrun and timeout do)."""

_SAID = b"\ninterrupted: stopping where nothing is lost by it; once more to stop at once\n"


class Held:
    """The flag that a signal sets while a block holds signals back; made by `held`.

    Within another block that holds them it is never set: what is a whole step for the inner block
    may be a part of one for the outer, which is the one to answer.
    """

    def __init__(self) -> None:
        self._first = 0.0
        self._number: int | None = None
        self._answered = False

    @property
    def heard(self) -> bool:
        """Whether this block was asked to stop."""
        return self._number is not None

    def check(self, place: str, *, resume: bool) -> None:
        """Raise `Interrupted`, to which the arguments belong, if a signal came."""
        if self.heard:
            raise self.interrupted(place, resume=resume)

    def interrupted(self, place: str, *, resume: bool) -> Interrupted:
        """The answer to the signal, for the caller to raise; nothing is lost by stopping here."""
        self.finished()
        return Interrupted(place, resume=resume)

    def finished(self) -> None:
        """Nothing is left to interrupt: what was asked for is done, and ends as usual."""
        self._answered = True

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Set the flag; at a second signal, stop at once."""
        now = time.monotonic()
        if self._number is None:
            self._first, self._number = now, number
            os.write(2, _SAID)  # not print, which cannot be entered twice by one thread
        elif now - self._first >= _SAME:
            raise KeyboardInterrupt

    def come_now(self) -> None:
        """Let a signal that nobody answered do what it does without the block."""
        if self._number is not None and not self._answered:
            signal.raise_signal(signal.Signals(self._number))


_holding: Held | None = None


def are_held() -> bool:
    """Whether a block around this holds them back."""
    return _holding is not None


@contextmanager
def held() -> Iterator[Held]:
    """Hold back the first SIGINT or SIGTERM for the block, which asks for it where it can stop."""
    global _holding
    one = Held()
    if _holding is not None or threading.current_thread() is not threading.main_thread():
        yield one
        return
    _holding = one
    try:
        with _handled(one.hear):
            yield one
    except KeyboardInterrupt:  # whoever raised it has ended the block
        one.finished()
        raise
    finally:
        _holding = None
        one.come_now()


@contextmanager
def told(
    place: str | Callable[[], str], *, resume: bool | Callable[[], bool], always: bool = False
) -> Iterator[None]:
    """Say of an interrupt in the block where it left things.

    Args:
        place: see `Interrupted`; or a function that knows it by then.
        resume: likewise.
        always: also where a part of the block has said it: its steps are nobody's business outside.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and not always:
            raise
        where, goes_on = (one() if callable(one) else one for one in (place, resume))
        raise Interrupted(str(where), resume=bool(goes_on)) from error


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that it cleans up after itself."""
    main = threading.current_thread() is threading.main_thread()
    with _handled(signal.default_int_handler) if main else nullcontext():
        yield


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals for the block; one that is ignored, as nohup wishes, stays ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]
    try:
        for number in handled:
            signal.signal(number, handler)
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)
