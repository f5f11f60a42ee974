"""Ctrl-C and SIGTERM, heard between two steps of a long operation and not in the middle of one.

A step of training that has been charged is paid for, whether its update is applied or not. So the
first signal only asks: the operation finishes its step, writes down what there is to write, and
raises `userdp.errors.Interrupted`. A second signal ends it at once, as signals usually do.

Only the main thread of a process can be asked; elsewhere signals do what they did before.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from userdp.errors import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_SAME = 1.0
"""Signals within so many seconds are one: a terminal sends Ctrl-C to a process and to its parent,
which may pass it on (torchrun and timeout do)."""

_SOON = 0.01
"""Seconds after which a dropped interrupt comes again: its finalizer has ended by then."""

_SAID = b"\ninterrupted: stopping where nothing is lost by it; once more to stop at once\n"


class Held:
    """The signals that came while a block held them back; made by `held`.

    Attributes:
        owner: whether this block is the one to answer. Within another block that holds signals it
            is not: what is a whole step for the inner one may be a part of one for the outer.
    """

    def __init__(self, *, owner: bool) -> None:
        self.owner = owner
        self._first: float | None = None
        self._number: int | None = None
        self._answered = False
        self._before: dict[int, signal.Handlers | int | _Handler | None] = {}
        # Also when the interpreter ends within the block, while there are modules to do it with.
        self._restore = weakref.finalize(self, _give_back, self._before)

    @property
    def heard(self) -> bool:
        """Whether this block was asked to stop, and is the one to answer."""
        return self.owner and self._number is not None

    def check(self, place: str, *, resume: bool) -> None:
        """Raise `Interrupted` if a signal came; nothing is lost by stopping here.

        Args:
            place: see `Interrupted`.
            resume: see `Interrupted`.
        """
        if self.heard:
            raise self.interrupted(place, resume=resume)

    def interrupted(self, place: str, *, resume: bool) -> Interrupted:
        """The answer to the signal, for the caller to raise."""
        self._answered = True
        return Interrupted(place, resume=resume)

    def finished(self) -> None:
        """Nothing is left to interrupt: what was asked for is done, and ends as usual."""
        self._answered = True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._number = now, number
            os.write(2, _SAID)  # not print, which cannot be entered twice by one thread
        elif now - self._first >= _SAME:
            self._answered = True
            self._restore()
            signal.raise_signal(signal.Signals(number))

    def _take(self) -> None:
        if _came is not None:
            self._first, self._number = time.monotonic(), _came
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wishes
                self._before[number] = signal.signal(number, self._hear)

    def _leave(self) -> None:
        """Give the signals back; one that nobody answered comes now."""
        self._restore()
        if self._number is not None and not self._answered:
            signal.raise_signal(signal.Signals(self._number))


def _give_back(before: dict[int, signal.Handlers | int | _Handler | None]) -> None:
    while before:
        number, handler = before.popitem()
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


_Handler = Callable[[int, FrameType | None], object]
_holding: Held | None = None
_came: int | None = None
"""The number of a signal that came in a `terminable` block, outside of `held` ones."""


def are_held() -> bool:
    """Whether a block around this holds them back."""
    return _holding is not None


@contextmanager
def held() -> Iterator[Held]:
    """Hold back the first SIGINT or SIGTERM for the block, which asks for it where it can stop."""
    global _holding
    if _holding is not None or threading.current_thread() is not threading.main_thread():
        yield Held(owner=False)
        return
    _holding = one = Held(owner=True)
    one._take()
    try:
        yield one
    except KeyboardInterrupt:
        one.finished()
        raise
    finally:
        _holding = None
        one._leave()


@contextmanager
def told(
    place: str | Callable[[], str], *, resume: bool | Callable[[], bool], always: bool = False
) -> Iterator[None]:
    """Say of an interrupt in the block where it left things.

    Args:
        place: see `Interrupted`; a function of what is there by then.
        resume: see `Interrupted`; likewise.
        always: also where a part of the block has said it: its steps are nobody's business outside.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Interrupted) and not always:
            raise
        raise Interrupted(
            place if isinstance(place, str) else place(),
            resume=resume if isinstance(resume, bool) else resume(),
        ) from error


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that it cleans up after itself.

    Some libraries catch every exception while they are imported, and so an interrupt too. One that
    came in the block is remembered: the next `held` block in it has heard it already. Python itself
    drops what is raised in a finalizer or in the callback of a weak reference: such an interrupt
    comes once more, but never after the block: whoever runs then did not ask for it.
    """
    global _came
    usual_hook, again = sys.unraisablehook, list[threading.Timer]()

    def once_more(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt) or _came is None:
            usual_hook(dropped)
            return
        timer = threading.Timer(_SOON, os.kill, (os.getpid(), _came))
        timer.daemon = True
        timer.start()
        again.append(timer)

    def end(number: int, frame: FrameType | None) -> None:
        global _came
        _came = number
        raise KeyboardInterrupt

    taken = {}
    if threading.current_thread() is threading.main_thread():
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        for number, handler in usual.items():
            if signal.getsignal(number) is handler:
                taken[number] = signal.signal(number, end)
    if taken:
        sys.unraisablehook = once_more
    try:
        yield
    finally:
        try:
            for timer in again:
                timer.cancel()
                timer.join()  # one that could not be cancelled has sent its signal by now
        finally:
            sys.unraisablehook = usual_hook
            _came = None
            for number, handler in taken.items():
                signal.signal(number, handler)
