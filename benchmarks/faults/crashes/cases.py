"""The cases of the campaign, drawn one by one by a committed seed: a number names a case."""

from __future__ import annotations

import random
from dataclasses import dataclass

from benchmarks.faults.crashes.layer import Act

SEED = 19
COMMANDS = (
    "train", "plan", "prepare", "append", "audit", "sweep", "export", "forget", "federate",
)  # fmt: skip
INSTANT = "instant"
"""A kill at a random moment on the clock, whatever the process does then."""
_KINDS = (
    INSTANT, Act.KILL, Act.CUT, INSTANT, Act.KILL, Act.TEAR, Act.FULL,
    INSTANT, Act.KILL, Act.CUT, INSTANT, Act.KILL, Act.TEAR, Act.ERROR,
    INSTANT, Act.KILL, Act.CUT, INSTANT, Act.KILL, Act.TEAR, Act.READ_ONLY,
)  # fmt: skip
_MORE_LIVES = (0.5, 0.25)
"""The chance that a command that was killed and goes on is killed a second, and a third time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What goes wrong in one life of a process.

    Args:
        kind: `INSTANT`, or an act of the file layer.
        at: where, as a share of the undisturbed command: of its time, or of its operations.
    """

    kind: str
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A command, and what goes wrong in its lives, one after another.

    Args:
        number: names the case.
        command: which scene is played.
        faults: of the first life, and of those after it; the last life has none.
        seeded: cohorts and noise are functions of the step (`seeds`); else they are secret.
        clock: seconds by which the clock is set back when the command goes on.
    """

    number: int
    command: str
    faults: tuple[Fault, ...]
    seeded: bool
    clock: float

    @property
    def name(self) -> str:
        """For the table and for errors."""
        told = ", then ".join(f"{fault.kind} at {fault.at:.3f}" for fault in self.faults)
        return f"{self.number} {self.command}: {told}"


def case_of(number: int) -> Case:
    """The case of this number, from 0: the same whoever asks, and whatever was asked before."""
    draw = random.Random(f"{SEED}/{number}")
    turn, place = divmod(number, len(COMMANDS))
    kind = _KINDS[turn % len(_KINDS)]
    faults = [Fault(kind=kind, at=draw.random())]
    for chance in _MORE_LIVES:
        if draw.random() >= chance:
            break
        faults.append(Fault(kind=draw.choice((INSTANT, Act.KILL, Act.CUT)), at=draw.random()))
    return Case(
        number=number,
        command=COMMANDS[place],
        faults=tuple(faults),
        seeded=draw.random() < 0.5,
        clock=draw.choice((0.0, 0.0, 0.0, 86_400.0)),
    )
