"""How far long work is, with the time that is left: a bar in a terminal, a line in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

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

from userdp.data.progress import Progress

stderr = Console(stderr=True, highlight=False)
"""The one console for all that is no result: a bar moves on below what is printed to it."""

_EVERY = 0.5  # seconds between two drawings in a notebook


@contextmanager
def shown(progress: Progress | None) -> Iterator[Progress]:
    """What is given; by default a bar where somebody looks: in a terminal or a notebook."""
    if progress is not None:
        yield progress
    elif _in_notebook():
        yield NotebookBar()
    else:
        with StepBar() as bar:
            yield bar


class StepBar(Bars):
    """`userdp.data.progress.Progress` as a bar on stderr; silent where that is no terminal."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=stderr,
            disable=not stderr.is_terminal,
        )
        self._stage: TaskID | None = None

    def stage(self, name: str, total: int | None) -> None:
        """A new bar; the one before stands at its end."""
        if self._stage is not None:
            self.update(self._stage, completed=self.tasks[self._stage].total)
        self._stage = self.add_task(name, total=total)

    def at(self, done: int) -> None:
        """Move it."""
        if self._stage is not None:
            self.update(self._stage, completed=done)


class NotebookBar:
    """The same in a notebook's cell: one line a stage, which is redrawn twice a second at most."""

    def __init__(self) -> None:
        self._name, self._begin, self._drawn = "", 0.0, 0.0
        self._done = 0
        self._total: int | None = None
        self._handle: Any = None

    def stage(self, name: str, total: int | None) -> None:
        """A new line; the one before stands at its end."""
        self._draw()
        self._name, self._total, self._begin, self._drawn = name, total, time.monotonic(), 0.0
        self._handle, self._done = None, 0
        self._draw()

    def at(self, done: int) -> None:
        """Redraw it, unless that was just done."""
        self._done = done
        if time.monotonic() - self._drawn >= _EVERY or done == self._total:
            self._draw()

    def _draw(self) -> None:
        if not self._name:
            return
        self._drawn = time.monotonic()
        from IPython.display import HTML, display

        line = HTML(_line(self._name, self._done, self._total, self._drawn - self._begin))
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


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this, which alone can redraw what it displayed."""
    shell = sys.modules.get("IPython")
    return shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
