"""``userdp evaluate``: loss and perplexity of a run's model, for its operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit


def evaluate(
    run: Path,
    /,
    *,
    store: Path,
    split: Literal["held-out-users", "held-out-examples", "train"] = "held-out-users",
    base: bool = False,
    batch: int = 32,
    most_users: int | None = None,
    json: bool = False,
) -> None:
    """Measure a run's loss and perplexity on people's text; exact, so operator-only.

    The numbers are appended to RUN/operator.jsonl. No epsilon covers them.

    Args:
        run: the folder of a finished run.
        store: the user store to measure on.
        split: held-out-users (nothing of theirs was trained on), held-out-examples (of training
            users) or train.
        base: also measure the model that the run began from.
        batch: examples in one pass.
        most_users: read the first so many users alone.
        json: print one JSON object on stdout.
    """
    from userdp.data.splits import Split
    from userdp.data.store import UserStore
    from userdp.training.evaluate_run import evaluate_run

    found = evaluate_run(
        run,
        UserStore.open(store),
        Split(split),
        with_base=base,
        batch=batch,
        most_users=most_users,
    )
    result: dict[str, Any] = {"run": str(run), "operator_only": True, **found}
    emit(result, json=json, render=lambda console: _print(console, result))


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column(result["split"])
    for name in ("loss", "perplexity", "loss per user"):
        table.add_column(name, justify="right")
    for name in ("base", "model"):
        if name in result:
            values = result[name]
            table.add_row(
                name,
                f"{values['loss']:.4f}",
                f"{values['perplexity']:.1f}",
                f"{values['user_loss']:.4f}",
            )
    console.print(table)
    console.print(
        f"{result['users']:,} users, {result['examples']:,} examples. "
        "Exact numbers about people's text: operator-only, not differentially private.",
        soft_wrap=True,
        markup=False,
    )
