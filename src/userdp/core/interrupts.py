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
from collections.abc import Iterator
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

    Attributes:
        heard: whether the block is to stop; the block sets it back where nothing is left to stop.
    """

    def __init__(self) -> None:
        self.heard = False
        self._first: float | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Set the flag; at a second signal, stop at once."""
        if self._first is None:
            self.heard, self._first = True, time.monotonic()
            os.write(2, _SAID)  # not print, which cannot be entered twice by one thread
        elif time.monotonic() - self._first >= _SAME:
            raise KeyboardInterrupt


def are_held() -> bool:
    """Whether a block around this holds signals back."""
    handlers = (signal.getsignal(number) for number in SIGNALS)
    return any(isinstance(getattr(one, "__self__", None), Held) for one in handlers)


@contextmanager
def held() -> Iterator[Held]:
    """Hold back the first SIGINT or SIGTERM for the block, which looks for it where it can stop.

    A signal that is ignored, as a shell wishes of what runs in its background, stays ignored. The
    flag of a block within another is never set: what is a whole step for the inner block may be a
    part of one for the outer, which is the one to answer.

    Raises:
        KeyboardInterrupt: a second signal came; or the block ended well with its flag set.
    """
    asked = Held()
    free = threading.current_thread() is threading.main_thread() and not are_held()
    before = {number: signal.getsignal(number) for number in SIGNALS if free}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, asked.hear)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if asked.heard:
        raise KeyboardInterrupt


@contextmanager
def on_interrupt(told: Interrupted, *, always: bool = False) -> Iterator[None]:
    """Raise ``told`` in place of a `KeyboardInterrupt` in the block.

    Args:
        told: says where the operation stopped; the block may change what it says.
        always: also replace an `Interrupted` of an operation within the block, whose steps say
            nothing to the caller of this one.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and not always:
            raise
        raise told from error
