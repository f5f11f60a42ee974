"""Deliberate faults of the library, each of which the campaign must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from userdp import files
from userdp.gradients.noise import NoiseSource
from userdp.ledger import RunLedger


def late_ledger() -> None:
    """A step's line is written when the next step begins."""
    honest, pending = RunLedger.attempt, list[Any]()

    def late(ledger: RunLedger, step: Any) -> int:
        if pending:
            honest(ledger, pending.pop())
        pending.append(step)
        return ledger.attempts + 1

    RunLedger.attempt = late


def same_noise() -> None:
    """Each process draws the noise that the one before it drew."""

    def seed(source: NoiseSource) -> np.random.SeedSequence:
        source._seeds += 1
        return np.random.SeedSequence(0, spawn_key=(source._seeds,), pool_size=8)

    NoiseSource._seed = seed


def left_file() -> None:
    """What a killed process left half-written stays."""
    files._remove_left = lambda left: None


TWINS: dict[str, Callable[[], None]] = {
    "late-ledger": late_ledger,
    "same-noise": same_noise,
    "left-file": left_file,
}
