"""Ctrl-C and SIGTERM, heard between two steps of a long operation and not in the middle of one.

A step of training that has been charged is paid for, whether its update is applied or not. So the
first signal only sets a flag: the operation finishes its step, writes down what there is to write,
and raises `userdp.core.errors.Interrupted`. A second signal ends it at once, as signals usually do.

Only the main thread of a process can be asked; elsewhere signals do what they did before.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    Attributes:
        heard: whether this block was asked to stop, and has not answered.
    """

    def __init__(self) -> None:
        self.heard = False
        self._first = -math.inf

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Set the flag; at a second signal, stop at once."""
        now = time.monotonic()
        if now - self._first < _SAME:
            return
        if self.heard:
            raise KeyboardInterrupt
        self.heard, self._first = True, now
        os.write(2, _SAID)  # not print, which cannot be entered twice by one thread

    def interrupted(self, place: str, *, resume: bool) -> Interrupted:
        """The answer to the signal, for the caller to raise; nothing is lost by stopping here."""
        self.finished()
        return Interrupted(place, resume=resume)

    def finished(self) -> None:
        """Nothing is left to interrupt: what was asked for is done, and ends as usual."""
        self.heard = False


_holding = False


def are_held() -> bool:
    """Whether a block around this holds signals back."""
    return _holding


@contextmanager
def held() -> Iterator[Held]:
    """Hold back the first SIGINT or SIGTERM for the block, which asks for it where it can stop.

    A signal that is ignored, as a shell wishes of what runs in its background, stays ignored.

    Raises:
        KeyboardInterrupt: a second signal came; or the block ended without an answer to the first.
    """
    global _holding
    one = Held()
    if _holding or threading.current_thread() is not threading.main_thread():
        yield one
        return
    handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, one.hear) for number in handled}
    _holding = True
    try:
        yield one
    except KeyboardInterrupt:  # whoever raised it has ended the block
        one.finished()
        raise
    finally:
        _holding = False
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if one.heard:
            raise KeyboardInterrupt


@contextmanager
def on_interrupt(
    place: str | Callable[[], str], *, resume: bool | Callable[[], bool], always: bool = False
) -> Iterator[None]:
    """Turn a `KeyboardInterrupt` in the block into an `Interrupted` that says where it stopped.

    Args:
        place: see `Interrupted`; or a function that is called when the interrupt comes.
        resume: likewise.
        always: also replace an `Interrupted` of an operation within the block, whose steps say
            nothing to the caller of this one.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and not always:
            raise
        where, goes_on = (one() if callable(one) else one for one in (place, resume))
        raise Interrupted(str(where), resume=bool(goes_on)) from error
