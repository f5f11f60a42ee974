"""The one list of checks, and what comes of asking them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from userdp.gradients.model_randomness import GeneratorStates
from userdp.training.checks import (
    cohorts,
    exactness,
    masks,
    noise_grid,
    noise_law,
    noise_tail,
    noise_twice,
    non_finite,
    processes,
    sensitivity,
)
from userdp.training.checks.check import Check, Verdict
from userdp.training.checks.subject import Subject

# Whether the processes agree comes first, since the others ask them together.
CHECKS: tuple[Check, ...] = (
    processes.CHECK,
    noise_tail.CHECK,
    noise_twice.CHECK,
    noise_law.CHECK,
    noise_grid.CHECK,
    cohorts.CHECK,
    exactness.CHECK,
    sensitivity.CHECK,
    masks.CHECK,
    non_finite.CHECK,
)


def verdicts(subject: Subject, checks: Iterable[Check] = CHECKS) -> Iterator[Verdict]:
    """What came of each check; a collective, with the same answer on every process.

    The states of all default generators are afterwards what they were.
    """
    before = GeneratorStates.read()
    try:
        for check in checks:
            measured = list(check.measure(subject))
            here = max(measured, key=lambda one: one.strain, default=None)
            told = [one for one in subject.world.all_gather_object(here) if one is not None]
            worst = max(told, key=lambda one: one.strain, default=None)
            yield Verdict(check=check, worst=worst)
    finally:
        before.load()
