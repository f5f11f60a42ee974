"""How long work tells how far it is, without knowing who shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What `prepare_store` calls; the command line draws a bar with it."""

    def stage(self, name: str, total: int | None) -> None:
        """A new stage begins; ``total`` is in the stage's own units, None if unknown."""

    def at(self, done: int) -> None:
        """The present stage stands at ``done`` units."""


class NoProgress:
    """Tells nobody."""

    def stage(self, name: str, total: int | None) -> None:
        """Do nothing."""

    def at(self, done: int) -> None:
        """Do nothing."""
