"""Interface through which long operations report progress; the caller decides how to show it."""

from __future__ import annotations


class Progress:
    """What long operations call. It tells nobody; `userdp.commands.progress` shows it."""

    def stage(self, name: str, total: int | None, *, unit: str = "") -> None:
        """Begin a new stage.

        Args:
            name: of the stage, such as "train".
            total: how many units it has; None if that is unknown, or nobody may see it.
            unit: one of them in a word, such as "step"; without it only the fraction is told.
        """

    def at(self, done: int) -> None:
        """The present stage stands at ``done`` units."""


class Uncounted(Progress):
    """Tells which stage an operation is in, and no number of it.

    Guarantee: what ``to`` is told depends on no private count. An operation that answers under
    differential privacy uses this: how many users it has to ask is an exact fact about the store.
    """

    def __init__(self, to: Progress) -> None:
        self._to = to

    def stage(self, name: str, total: int | None, *, unit: str = "") -> None:
        """Begin the stage, of unknown size."""
        self._to.stage(name, None)
