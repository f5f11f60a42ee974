"""A store's ledger, read: who was charged what, what was looked at, what was released.

`fold` reads the lines one after another. Whatever depends on their order follows from that order
alone, so that nobody can say it otherwise later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from userdp.accounting.filters import Cost, RenyiFilter
from userdp.ledger.lines import (
    Answer,
    BeginTuning,
    Charge,
    Line,
    Look,
    Open,
    OpenBudget,
    Release,
    Settle,
    Store,
    Trial,
)

L = TypeVar("L", bound=Line)


@dataclass(frozen=True, kw_only=True)
class History:
    """A store's ledger, read; `fold` makes it.

    Args:
        path: of the ledger.
        lines: all of them, oldest first.
        charges: by id, oldest first.
    """

    path: Path = Path("ledger.jsonl")
    lines: tuple[Line, ...] = ()
    charges: Mapping[str, Charge] = field(default_factory=dict)

    def of(self, kind: type[L]) -> Iterator[tuple[int, L]]:
        """The lines of a kind, each with its place."""
        return ((at, line) for at, line in enumerate(self.lines) if isinstance(line, kind))

    @cached_property
    def id(self) -> str:
        """Random, of the ledger; empty while it has no line."""
        return next((line.id for _, line in self.of(Store)), "")

    @cached_property
    def at(self) -> dict[str, int]:
        """The place of each charge, at which the constants that it names were fixed."""
        return {line.run_id: at for at, line in self.of(Charge)}

    @cached_property
    def copied(self) -> bool:
        """Whether its file is another one than was begun with its first line."""
        first, path = next(iter(self.lines), None), self.path
        return isinstance(first, Store) and path.exists() and path.stat().st_ino != first.inode

    @cached_property
    def openings(self) -> dict[str, Open]:
        """The last opening of each run."""
        return {line.run_id: line for _, line in self.of(Open)}

    @cached_property
    def settled(self) -> dict[str, tuple[int, Settle]]:
        """The line in which each run ended, with its place, by the run's id; of trials too."""
        return {line.run_id: (at, line) for at, line in self.of(Settle)}

    @cached_property
    def tunings(self) -> dict[str, tuple[int, BeginTuning]]:
        """The line in which each tuning began, with its place, by the tuning's id."""
        return {line.run_id: (at, line) for at, line in self.of(BeginTuning)}

    @cached_property
    def trials(self) -> dict[str, Trial]:
        """The trials of private selections, by their ids."""
        return {line.run_id: line for _, line in self.of(Trial)}

    @cached_property
    def answers(self) -> dict[str, Any]:
        """What was drawn for a statistic, or as a trial's score; nothing if a crash came first."""
        return {line.run_id: line.value for _, line in self.of(Answer)}

    @cached_property
    def looks(self) -> list[tuple[int, str]]:
        """What showed its operator an exact number, and at which line."""
        return [(at, line.what) for at, line in self.of(Look)]

    @cached_property
    def released(self) -> list[Release]:
        """Weights that runs over these people released, each once.

        The last word on the same weights counts: a trial that won claims what choosing it cost.
        """
        return list({line.weights: line for _, line in self.of(Release)}.values())

    @cached_property
    def budget(self) -> OpenBudget | None:
        """The total with a filter, if one was opened before the first charge."""
        return next((line for _, line in self.of(OpenBudget)), None)

    @cached_property
    def ids(self) -> frozenset[str]:
        """Of all that was charged here, under whichever id a model's lineage knows it."""
        charging = Charge | Trial | BeginTuning | OpenBudget
        return frozenset(line.run_id for line in self.lines if isinstance(line, charging))

    def is_final(self, charge: Charge) -> bool:
        """Whether what a charge costs is final."""
        return charge.run_id in self.settled or not charge.is_run

    def costs(self, opened: RenyiFilter) -> dict[str, Cost]:
        """What each charge takes from a filter, by its id."""
        return {run_id: charge.pays_for.cost(opened) for run_id, charge in self.charges.items()}

    def charged(self, *, after: int = -1, before: int | None = None) -> list[Charge]:
        """What was charged between two lines."""
        end = len(self.lines) if before is None else before
        return [one for name, one in self.charges.items() if after < self.at[name] < end]

    def looked(self, *, after: int = -1, before: int | None = None) -> frozenset[str]:
        """What showed exact numbers between two lines: commands, and ``train`` for logs of runs."""
        end = len(self.lines) if before is None else before
        logs = any(one.logged for one in self.charged(after=after, before=end))
        looks = {what for at, what in self.looks if after < at < end}
        return frozenset(looks | ({"train"} if logs else set()))

    def looked_during(self, charge: Charge) -> frozenset[str]:
        """What showed exact numbers while a loop of somebody's own was open or interrupted.

        They may have chosen how it went on.
        """
        if not charge.steered:
            return frozenset()
        end, _ = self.settled.get(charge.run_id, (None, None))
        return self.looked(after=self.at[charge.run_id], before=end)

    def tuning_of(self, constants: str) -> str | None:
        """The tuning that has these constants in its grid, and has not released a winner yet."""
        ended = {one.run_id for one in self.released}
        open_ = (tuning for name, (_, tuning) in self.tunings.items() if name not in ended)
        return next((tuning.run_id for tuning in open_ if constants in tuning.constants), None)


def fold(lines: Iterable[Line], path: Path) -> History:
    """What the store's ledger at ``path`` says; no lines are no charges."""
    kept = tuple(lines)
    charges = {line.run_id: line for line in kept if isinstance(line, Charge)}
    return History(path=path, lines=kept, charges=charges)
