"""``userdp account``: the (ε, δ) of a mechanism, or of what a ledger says was run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from userdp.cli.mechanism_options import MechanismSampling, build_mechanism
from userdp.cli.output import emit
from userdp.errors import UseError
from userdp.guarantees import PrivacyUnit, round_up


def account(
    *,
    sampling: MechanismSampling | None = None,
    sampling_probability: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    group_size: int | None = None,
    delta: float | None = None,
    ledger: Path | None = None,
    json: bool = False,
) -> None:
    """Compute the (epsilon, delta) of a mechanism or of a ledger; reads no data.

    Args:
        sampling: users (ULS: whole users join a step) or examples (ELS).
        sampling_probability: q (users) or p (examples), in (0, 1].
        noise_multiplier: standard deviation of the noise divided by the clip norm.
        steps: noisy updates released; physical micro-batches never count.
        group_size: most examples per user in the training set (examples sampling).
        delta: in (0, 1); with --ledger, each run's own by default.
        ledger: a run or store ledger, or the folder that holds one; epsilon is recomputed from it.
        json: print one JSON object on stdout.
    """
    if ledger is not None:
        _account_ledger(ledger, delta, json=json)
        return
    if noise_multiplier is None or delta is None:
        raise UseError(
            "account needs --noise-multiplier and --delta (or --ledger PATH): "
            "without them there is no epsilon to compute"
        )
    mechanism = build_mechanism(
        sampling=sampling,
        sampling_probability=sampling_probability,
        noise_multiplier=noise_multiplier,
        steps=steps,
        group_size=group_size,
    )
    bracket = mechanism.epsilon(delta)
    result = {
        "epsilon": bracket.upper,
        "epsilon_lower_bound": bracket.lower,
        "delta": delta,
        "noise_multiplier": noise_multiplier,
        "sampling_probability": mechanism.sampling_probability,
        "steps": mechanism.steps,
        "group_size": mechanism.group_size,
        "unit": str(PrivacyUnit.USER),
        "adjacency": str(mechanism.adjacency),
        "sampling": str(mechanism.sampling),
        "accountant": bracket.accountant,
    }
    emit(result, json=json, render=lambda console: print_table(console, result))


def _account_ledger(path: Path, delta: float | None, *, json: bool) -> None:
    from userdp.ledger import claim

    result = claim(path, delta=delta).to_dict()
    emit(result, json=json, render=lambda console: print_table(console, result))


def print_table(console: Console, result: dict[str, Any]) -> None:
    """The result as two columns; ε rounded up."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for key, value in result.items():
        if key == "epsilon":
            value = f"[bold]{round_up(float(value), 6)}[/]"
        elif isinstance(value, float):
            value = f"{value:.8g}"
        table.add_row(key.replace("_", " "), str(value))
    console.print(table)
