"""How far long work is, with the time that is left.

In a terminal it is a bar, in a notebook a line that is redrawn, and elsewhere (a file, a pipe, a
scheduler's log) a new line now and then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from userdp.data.progress import Note, Progress

stderr = Console(stderr=True, highlight=False)
"""The one console for all that is no result: a bar moves on below what is printed to it."""

_REDRAWN = 0.5  # seconds between two drawings in a notebook
_SECONDS, _STEPS = 30.0, 20
"""A line is written after so many seconds or so many counted units, whichever comes first."""


@contextmanager
def shown(progress: Progress | None = None) -> Iterator[Progress]:
    """What is given; by default whatever suits the place where stderr goes."""
    if progress is not None:
        yield progress
    elif _in_notebook():
        yield NotebookBar()
    elif stderr.is_terminal:
        with StepBar() as bar:
            yield bar
    else:
        with Lines() as lines:
            yield lines


class StepBar(Bars):
    """`userdp.data.progress.Progress` as a bar on stderr, for a terminal."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=stderr,
        )
        self._stage: TaskID | None = None
        self._note: Note | None = None

    def stage(
        self, name: str, total: int | None, *, unit: str = "", note: Note | None = None
    ) -> None:
        """A new bar; the one before stands at its end."""
        if self._stage is not None:
            self.update(self._stage, completed=self.tasks[self._stage].total)
        self._note = note
        self._stage = self.add_task(name, total=total, note="")

    def at(self, done: int) -> None:
        """Move it."""
        if self._stage is not None:
            self.update(self._stage, completed=done, note=self._note(done) if self._note else "")


class Lines:
    """The same as lines on stderr, for a file or a pipe: one every 30 s or 20 steps.

    A thread writes those of the clock, so that a step or a stage that takes minutes does not pass
    in silence.

    Args:
        write: takes a line.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(
        self,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._clock = write or _to_stderr, clock
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._name, self._unit = "", ""
        self._total: int | None = None
        self._note: Note | None = None
        self._first: int | None = None  # where the stage began: a resumed run goes on in the middle
        self._begin = self._last = self._clock()
        self._done = self._told = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def stage(
        self, name: str, total: int | None, *, unit: str = "", note: Note | None = None
    ) -> None:
        """Speak of this stage from now on; the first line comes when it has lasted a while."""
        with self._lock:
            self._name, self._total, self._unit, self._note = name, total, unit, note
            self._begin = self._last = self._clock()
            self._first, self._done, self._told = None, 0, 0

    def at(self, done: int) -> None:
        """Write a line, if one is due."""
        with self._lock:
            if self._first is None:
                self._first = self._told = done
            self._done = done
            counted = self._unit and done - self._told >= _STEPS
            if counted or self._clock() - self._last >= _SECONDS:
                self._tell()

    def beat(self) -> float:
        """Write a line if the clock says so; the seconds until it may be due again."""
        with self._lock:
            if self._name and self._clock() - self._last >= _SECONDS:
                self._tell()
            return max(0.1, self._last + _SECONDS - self._clock())

    def _watch(self) -> None:
        while not self._end.wait(self.beat()):
            pass

    def _tell(self) -> None:
        self._last, self._told = self._clock(), self._done
        seconds, first = self._last - self._begin, self._first or 0
        words = [self._where(seconds)]
        if self._note is not None and (note := self._note(self._done)):
            words.append(note)
        if self._total is not None and first < self._done < self._total:
            left = seconds / (self._done - first) * (self._total - self._done)
            words.append(f"{duration(left)} left")
        self._write(", ".join(words))

    def _where(self, seconds: float) -> str:
        """The stage, and where it stands; training itself is called by its steps."""
        stage = "" if self._name == "train" else f"{self._name}: "
        if self._total is None:
            return f"{self._name}: {duration(seconds)} so far"
        if self._unit:
            return f"{stage}{self._unit} {self._done:,} of {self._total:,}"
        return f"{stage}{self._done / max(1, self._total):.0%} done"


class NotebookBar:
    """The same in a notebook's cell: one line a stage, which is redrawn twice a second at most."""

    def __init__(self) -> None:
        self._name, self._begin, self._drawn = "", 0.0, 0.0
        self._done = 0
        self._total: int | None = None
        self._note: Note | None = None
        self._handle: Any = None

    def stage(
        self, name: str, total: int | None, *, unit: str = "", note: Note | None = None
    ) -> None:
        """A new line; the one before stands at its end."""
        self._draw()
        self._note = note
        self._name, self._total, self._begin, self._drawn = name, total, time.monotonic(), 0.0
        self._handle, self._done = None, 0
        self._draw()

    def at(self, done: int) -> None:
        """Redraw it, unless that was just done."""
        self._done = done
        if time.monotonic() - self._drawn >= _REDRAWN or done == self._total:
            self._draw()

    def _draw(self) -> None:
        if not self._name:
            return
        self._drawn = time.monotonic()
        from IPython.display import HTML, display

        seconds = self._drawn - self._begin
        note = "" if self._note is None else f", {self._note(self._done)}"
        line = HTML(_line(self._name, self._done, self._total, seconds) + escape(note))
        if self._handle is None:
            self._handle = display(line, display_id=True)
        else:
            self._handle.update(line)


def _line(name: str, done: int, total: int | None, seconds: float) -> str:
    """One line of HTML: what is done, of how much, and the time that is left."""
    of = "" if total is None else f" of {total:,}"
    left = f", {seconds / done * (total - done):.0f} s left" if total and 0 < done < total else ""
    bar = f'<progress value="{done}" max="{total}"></progress> ' if total else ""
    return f"{bar}{escape(name)}: {done:,}{of}, {seconds:.0f} s{left}"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(200), duration(7500), duration(12.4)
    ('3 min 20 s', '2 h 5 min', '12 s')
    """
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def _to_stderr(line: str) -> None:
    stderr.print(line, soft_wrap=True, markup=False)


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this, which alone can redraw what it displayed."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
