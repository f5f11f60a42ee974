"""A progress bar with the time that is left, on stderr; a plain line now and then in a pipe."""

from __future__ import annotations

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


class StepBar(Progress):
    """`userdp.data.progress.Progress` as a bar; silent where stderr is no terminal."""

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
