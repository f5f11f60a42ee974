"""A progress bar with the time that is left, on stderr; a plain line now and then in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from userdp.cli.output import stderr


class StepBar:
    """`userdp.data.progress.Progress` as a bar; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=stderr,
            disable=not stderr.is_terminal,
        )
        self._task: TaskID | None = None

    def stage(self, name: str, total: int | None) -> None:
        """A new bar; the one before stands at its end."""
        if self._task is not None:
            self._bar.update(self._task, completed=self._bar.tasks[self._task].total)
        self._task = self._bar.add_task(name, total=total)

    def at(self, done: int) -> None:
        """Move it."""
        if self._task is not None:
            self._bar.update(self._task, completed=done)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
