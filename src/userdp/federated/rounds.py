"""The server's rounds: ask the scheduled silos, average what comes back, go on.

The same for Flower and for silos in this process: only ``ask`` differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from userdp.errors import FailureError, UseError
from userdp.federated.plan import FederationPlan
from userdp.files import write_file
from userdp.ledger.folder import read_lines

Weights = dict[str, NDArray[np.float32]]
Ask = Callable[[int, tuple[int, ...], Weights], Mapping[int, Weights]]
"""``ask(round, silos, weights)``: the updates that came back, by silo."""

MODEL_FILE, ROUNDS_FILE = "model.safetensors", "rounds.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFacts:
    """What a round did; public, for who replied is known to the server anyway.

    Args:
        round: from 1.
        asked: the silos of the schedule.
        replied: those whose update was averaged.
        dropped: those whose reply was no update of this model.
    """

    round: int
    asked: tuple[int, ...]
    replied: tuple[int, ...]
    dropped: tuple[int, ...]


OnRound = Callable[[RoundFacts, Weights], None]


def aggregate(
    weights: Weights, updates: Mapping[int, Weights]
) -> tuple[Weights, tuple[int, ...], tuple[int, ...]]:
    """Weights plus the plain mean of the updates; silos averaged; silos left out.

    The mean counts silos, never items. An update of another shape or with numbers that are not
    finite is left out.

    Source: Marathe et al. 2023, Algorithms 1 to 3 (server loop).
    """
    good: list[int] = []
    bad: list[int] = []
    for silo in sorted(updates):
        update = updates[silo]
        fits = update.keys() == weights.keys() and all(
            update[name].shape == weights[name].shape and bool(np.isfinite(update[name]).all())
            for name in weights
        )
        (good if fits else bad).append(silo)
    if not good:
        return weights, (), tuple(bad)
    mean = {
        name: np.mean([updates[silo][name] for silo in good], axis=0, dtype=np.float64)
        for name in weights
    }
    added = {name: (weights[name] + mean[name]).astype(np.float32) for name in weights}
    return added, tuple(good), tuple(bad)


def run_rounds(
    plan: FederationPlan,
    weights: Weights,
    ask: Ask,
    *,
    first: int = 1,
    on_round: OnRound | None = None,
) -> Weights:
    """Rounds ``first`` to R of a plan; a round from which nothing comes back changes nothing."""
    for number in range(first, plan.rounds + 1):
        asked = plan.schedule(number)
        updates = ask(number, asked, weights)
        weights, replied, dropped = aggregate(weights, updates)
        if on_round is not None:
            facts = RoundFacts(round=number, asked=asked, replied=replied, dropped=dropped)
            on_round(facts, weights)
    return weights


def save_weights(path: Path, weights: Weights, *, rounds: int) -> None:
    """Write weights and how many rounds they have seen, whole or not at all."""
    try:
        write_file(path, save(weights, metadata={"rounds": str(rounds)}))
    except OSError as error:
        raise FailureError(f"cannot write {path}: {error.strerror}") from error


def load_weights(path: Path) -> tuple[Weights, int]:
    """(weights, rounds); `UseError` where the file is not one."""
    try:
        with safe_open(path, "numpy") as file:
            rounds = int(file.metadata()["rounds"])
            return {name: file.get_tensor(name) for name in file.keys()}, rounds  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UseError(f"cannot read weights from {path}: {error}") from error


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """What a server's rounds did, oldest first."""
    path = folder / ROUNDS_FILE
    if not path.exists():
        return []
    return read_lines(path, dict)
