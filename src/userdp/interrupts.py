"""Ctrl-C and SIGTERM, heard between two steps of a long operation and not in the middle of one.

A step of training that has been charged is paid for, whether its update is applied or not. So the
first signal only sets a flag: the operation finishes its step, writes down what there is to write,
and raises `userdp.errors.Interrupted`. A second signal ends it at once, as signals usually do.

Only the main thread of a process can be asked; elsewhere signals do what they did before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from userdp.errors import Interrupted

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_SAME = 1.0
"""Signals within so many seconds are one: a terminal sends Ctrl-C to a process and to its parent,
which may pass it on (torchrun and timeout do)."""

_SAID = b"\ninterrupted: stopping where nothing is lost by it; once more to stop at once\n"


class Held:
    """The signals that came while a block held them back; made by `held`.

    Attributes:
        owner: whether this block is the one to answer. Within another block that holds signals it
            is not: what is a whole step for the inner one may be a part of one for the outer.
    """

    def __init__(self, *, owner: bool) -> None:
        self.owner = owner
        self._first = 0.0
        self._number: int | None = None
        self._answered = False

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

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Set the flag; at a second signal, stop at once."""
        now = time.monotonic()
        if self._number is None:
            self._first, self._number = now, number
            os.write(2, _SAID)  # not print, which cannot be entered twice by one thread
        elif now - self._first >= _SAME:
            self._answered = True
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
    if _holding is not None or threading.current_thread() is not threading.main_thread():
        yield Held(owner=False)
        return
    _holding = one = Held(owner=True)
    try:
        with _handled(one.hear):
            yield one
    except KeyboardInterrupt:
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
    """Let SIGTERM end the block as Ctrl-C does, so that it cleans up after itself."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in SIGNALS if main and signal.getsignal(number) in usual]
    with _handled(signal.default_int_handler, numbers):
        yield


@contextmanager
def _handled(
    handler: Callable[[int, FrameType | None], object],
    numbers: Iterable[signal.Signals] = SIGNALS,
) -> Iterator[None]:
    """Handle signals for the block; one that is ignored, as nohup wishes, stays ignored."""
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, signal.SIG_DFL if was is None else was)
