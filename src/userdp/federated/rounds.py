"""The server's rounds: ask the scheduled silos, average what comes back, go on.

The same for Flower and for silos in this process: only ``ask`` differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from userdp.core.errors import UseError
from userdp.core.files import append_line, write_file
from userdp.core.stages import Progress
from userdp.federated.federation_plan import FederationPlan

Weights = dict[str, NDArray[np.float32]]
Ask = Callable[[int, tuple[int, ...], Weights], Mapping[int, Weights]]
"""``ask(round, silos, weights)``: the updates, by silo, of those that answer in time."""

MODEL_FILE, ROUNDS_FILE = "model.safetensors", "rounds.jsonl"


def misfits(weights: Weights, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Names that are missing, unknown, of another shape, not float32 or not finite."""

    def fits(name: str) -> bool:
        array = weights.get(name)
        if array is None or tuple(array.shape) != shapes.get(name):
            return False
        return array.dtype == np.float32 and bool(np.isfinite(array).all())

    return sorted(name for name in shapes.keys() | weights.keys() if not fits(name))


def aggregate(
    weights: Weights, updates: Mapping[int, Weights]
) -> tuple[Weights, tuple[int, ...], tuple[int, ...]]:
    """Weights plus the plain mean of the updates; the averaged silos; the silos left out.

    The mean counts silos, never items. An update of another shape or with numbers that are not
    finite is left out.

    Source: Marathe et al. 2023, Algorithms 1 to 3 (server loop).
    """
    shapes = {name: array.shape for name, array in weights.items()}
    good = tuple(silo for silo in sorted(updates) if not misfits(updates[silo], shapes))
    bad = tuple(silo for silo in sorted(updates) if silo not in good)
    if not good:
        return weights, good, bad
    mean = {
        name: np.mean([updates[silo][name] for silo in good], axis=0, dtype=np.float64)
        for name in weights
    }
    added = {name: (weights[name] + mean[name]).astype(np.float32) for name in weights}
    return added, good, bad


def run_rounds(
    folder: Path,
    plan: FederationPlan,
    weights: Weights,
    ask: Ask,
    *,
    progress: Progress | None = None,
) -> Weights:
    """Run all rounds that are not done yet; a round without any update changes nothing.

    ``folder`` keeps the weights after each round and a public line on it (the server knows anyway
    who replied), so that a federation that was stopped goes on after its last round.

    Args:
        folder: of the federation.
        plan: its plan.
        weights: those of the first round.
        ask: asks the silos of a round.
        progress: is told how many rounds are done.
    """
    kept, done, shown = folder / MODEL_FILE, 0, progress or Progress()
    if kept.exists():
        weights, done = load_weights(kept)
    shown.stage("federate", plan.rounds, unit="round")
    shown.at(done)
    for number in range(done + 1, plan.rounds + 1):
        asked = plan.schedule(number)
        weights, replied, dropped = aggregate(weights, ask(number, asked, weights))
        save_weights(kept, weights, rounds=number)
        line = {"round": number, "asked": asked, "replied": replied, "dropped": dropped}
        append_line(folder / ROUNDS_FILE, line)
        shown.at(number)
    return weights


def save_weights(path: Path, weights: Weights, *, rounds: int) -> None:
    """Write weights and their number of rounds, whole or not at all."""
    write_file(path, save(weights, metadata={"rounds": str(rounds)}))


def load_weights(path: Path) -> tuple[Weights, int]:
    """(weights, rounds) of a file of `save_weights`; `UseError` where it is none."""
    try:
        with safe_open(path, "numpy") as file:
            rounds = int(file.metadata()["rounds"])
            return {name: file.get_tensor(name) for name in file.keys()}, rounds  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UseError(f"cannot read weights from {path}: {error}") from error
