"""Who does what, over and over: each role is one process, and each of its commands a child of it.

A command that is refused for one of its ``reasons`` did what the docs say: a store that people were
appended to is another one than an interrupted run began with, say, and nobody is erased while a run
is open. Any other status than 0 is a problem.
"""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.faults.crashes.scenes.base import TUNED, train, userdp
from benchmarks.faults.many.notes import Notes
from benchmarks.faults.many.world import ASKED, USERS, World, said

_TOGETHER = 4.0
"""Seconds: a purse is asked at their multiples only, by all who ask it, so about as long as an
answer takes on a busy machine."""
APPENDS = "another process appends to the store"
"""Why an append or an erasure is refused: there is one at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A command that is about to be given.

    Args:
        name: in words, for errors.
        work: gives it, in a child, and returns its exit status.
        reasons: words of errors by which it may be refused.
        chance: of being killed on the way.
        meet: see `Notes.watch`.
    """

    name: str
    work: Callable[[], int]
    reasons: tuple[str, ...] = ()
    chance: float = 0.0
    meet: float | None = None


def told_by(claim: Mapping[str, Any]) -> float:
    """ε of a claim as it was printed; 0 where nothing was charged, of which none is claimed."""
    return float(claim["epsilon"]) if claim["composition"] != "nothing was charged" else 0.0


class Role(ABC):
    """What one process does.

    Args:
        world: its store.
        name: of the process; files of its own bear it.
        notes: its notes.
        begin: the moment when all began.
        seconds: how long all of it lasts.
    """

    rest: ClassVar[float] = 0.3
    """Most seconds between two commands."""

    def __init__(
        self, world: World, *, name: str, notes: Notes, begin: float, seconds: float
    ) -> None:
        self.world, self.name, self.notes = world, name, notes
        self.draw = random.Random(name)
        self.begin, self.seconds = begin, seconds
        self.turns = 0

    @abstractmethod
    def turn(self) -> Turn:
        """What comes next."""

    def after(self, outcome: str, said: str) -> None:
        """What it learns of its command: ``done``, ``refused`` or ``killed``, and what it said."""
        self.turns += 1


class Trains(Role):
    """Begins runs, is killed in some of them, and goes on."""

    rest = 6.0
    _reasons = (
        # Somebody appended to the store: what the run began with is no more.
        "the store is not the one that the run at",
        "lost somebody while the run was opened",
    )

    def __init__(self, *arguments: World, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._number = 0

    @property
    def _run(self) -> str:
        return f"run-{self.name}-{self._number}"

    def turn(self) -> Turn:
        run = self._run
        return Turn(
            name=f"train {run}",
            work=lambda: train(self.world.folder, run),
            reasons=self._reasons,
            chance=0.4,
        )

    def after(self, outcome: str, said: str) -> None:
        super().after(outcome, said)
        if outcome == "killed":
            return
        begun = (self.world.folder / self._run / "resume.json").exists()
        if outcome == "refused" and begun:
            self.notes.tell("abandoned", run=self._run)
        self._number += 1


class Asks(Role):
    """Asks for DP answers: of the common store, and of a purse that others ask at the same time."""

    def turn(self) -> Turn:
        passed = (time.monotonic() - self.begin) / self.seconds
        purse = self.world.purse(min(int(passed * self.world.purses), self.world.purses - 1))
        place = purse if self.draw.random() < 0.7 else self.world.store
        return Turn(
            name=f"stats {place.name} --epsilon",
            work=lambda: userdp("stats", place, "--epsilon", ASKED, "--ask", "users"),
            reasons=("would be charged beyond",) if place == purse else (),
            chance=0.1,
            meet=_TOGETHER if place == purse else None,
        )


class Appends(Role):
    """Appends new people to the store."""

    rest = 12.0

    def turn(self) -> Turn:
        number = self.turns

        def work() -> int:
            more = self.world.write_more(number)
            return userdp("prepare", more, "--out", self.world.store, "--append")

        return Turn(name="prepare --append", work=work, reasons=(APPENDS,), chance=0.15)


class Forgets(Role):
    """Erases people, whenever no run is open."""

    rest = 1.0
    _gone, _late = "nobody in the store at", "a run was opened at the same moment"

    def __init__(self, *arguments: World, **options: object) -> None:
        super().__init__(*arguments, **options)
        self._person, self._killed = 0, False

    def turn(self) -> Turn:
        user = f"user{self._person % USERS:03d}"
        # One who was being erased when a kill came may be gone.
        gone = (self._gone,) if self._killed or self._person >= USERS else ()
        return Turn(
            name=f"forget {user}",
            work=lambda: userdp("forget", self.world.store, "--user", user, "--yes"),
            reasons=(APPENDS, "a run over this store is open", self._late, *gone),
            chance=0.1,
        )

    def after(self, outcome: str, said: str) -> None:
        super().after(outcome, said)
        if outcome == "done" or self._gone in said or self._late in said:
            self._person, self._killed = self._person + 1, False
        self._killed = self._killed or outcome == "killed"


class Reports(Role):
    """Reads claims, verifies, and reports, of the store and of any run."""

    def turn(self) -> Turn:
        runs = self.world.runs
        kinds: list[Callable[[], Turn]] = [self._budget]
        if (self.world.store / "ledger.jsonl").exists():  # else nothing was done here yet
            kinds += [self._of_store, self._of_store]
        if runs:
            kinds += [self._of_run, self._of_run, self._report, self._verify]
        return self.draw.choice(kinds)()

    def _claim(self, place: Path, run_id: str | None) -> int:
        since = time.monotonic()
        status, claim = said("account", "--ledger", place)
        if status == 0:
            self.notes.tell(
                "claim",
                subject=place.name,
                ledger=str(self.world.store / "ledger.jsonl"),
                run_id=run_id,
                epsilon=told_by(claim),
                since=since,
            )
        return status

    def _of_store(self) -> Turn:
        return Turn(
            name="account --ledger STORE",
            work=lambda: self._claim(self.world.store, None),
            reasons=("is empty: nothing was ever charged",),
        )

    def _of_run(self) -> Turn:
        run = self.draw.choice(self.world.runs)
        lines = (run / "ledger.jsonl").read_bytes().split(b"\n")
        run_id = json.loads(lines[0])["run_id"] if len(lines) > 1 else None
        if run_id is None:  # its first line is being written
            return self._of_store()
        return Turn(name=f"account --ledger {run.name}", work=lambda: self._claim(run, run_id))

    def _budget(self) -> Turn:
        return Turn(name="budget STORE", work=lambda: userdp("budget", self.world.store))

    def _verify(self) -> Turn:
        ended = [
            run for run in self.world.runs if b'"finish"' in (run / "ledger.jsonl").read_bytes()
        ]
        if not ended:
            return self._budget()
        run = self.draw.choice(ended)
        return Turn(name=f"verify {run.name}", work=lambda: userdp("verify", run))

    def _report(self) -> Turn:
        run, out = self.draw.choice(self.world.runs), self.world.folder / "report.html"
        return Turn(
            name=f"report {run.name}",
            work=lambda: userdp("report", run, "--out", out, "--overwrite"),
        )


class Looks(Role):
    """Looks at exact numbers, verifies the store, and sweeps now and then."""

    def turn(self) -> Turn:
        store = self.world.store
        if self.turns % 10 == 5:
            return self._sweep()
        words = self.draw.choice([("stats",), ("members",), ("verify",)])
        return Turn(name=" ".join(words), work=lambda: userdp(*words, store), chance=0.1)

    def _sweep(self) -> Turn:
        out = self.world.folder / f"sweep-{self.turns}"

        def work() -> int:
            return userdp(
                "tune", self.world.store, "--out", out, "--tuning", "non-private",
                "--plan", self.world.plan, "--learning-rate", 0.003, 0.03, *TUNED,
            )  # fmt: skip

        # Its trials begin one after another, on a store that somebody may append to meanwhile.
        return Turn(
            name="sweep", work=work, reasons=("lost somebody while", "of the sweep's trials")
        )


ROLES: dict[str, type[Role]] = {
    "trains-1": Trains,
    "trains-2": Trains,
    "asks-1": Asks,
    "asks-2": Asks,
    "appends": Appends,
    "forgets": Forgets,
    "reports": Reports,
    "looks": Looks,
}
