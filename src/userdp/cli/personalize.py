"""``userdp personalize``: what held-out users gain from a model of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit
from userdp.cli.progress import StepBar
from userdp.reporting.drawing import panels, require_drawing_place, save


def personalize(
    run: Path,
    /,
    *,
    store: Path,
    learning_rate: tuple[float, ...] = (0.03, 0.1, 0.3),
    epochs: int = 4,
    batch_size: int = 8,
    most_examples: int = 64,
    most_users: int | None = 200,
    lora_rank: int | None = None,
    base: bool = False,
    plot: Path | None = None,
    device: str | None = None,
    json: bool = False,
) -> None:
    """Adapt a run's model to each held-out user, and measure it on text of theirs kept back.

    Local SGD on half of each user's examples, then the loss on the other half, with and without
    (Charles et al. 2024, Appendix G.2). Exact, so operator-only; nothing is released or charged.

    Args:
        run: the folder of a finished run.
        store: the user store whose held-out users are measured.
        learning_rate: of the local SGD; several are compared, none is chosen for you.
        epochs: passes over a user's half.
        batch_size: examples of a local step.
        most_examples: of a user, both halves together.
        most_users: the first so many users alone.
        lora_rank: adapt adapters of this rank in place of all weights.
        base: also personalize the model that the run began from.
        plot: draw the table into this file (PNG, SVG or PDF; operator-only).
        device: cuda where there is one, else cpu.
        json: print one JSON object on stdout.
    """
    if plot is not None:
        require_drawing_place(plot)
    from userdp.data.store import UserStore
    from userdp.training.personalization import LocalTraining, personalize_run

    how = LocalTraining(
        learning_rates=learning_rate,
        epochs=epochs,
        batch_size=batch_size,
        most_examples=most_examples,
    )
    with StepBar() as bar:
        found = personalize_run(
            run,
            UserStore.open(store),
            how,
            with_base=base,
            lora_rank=lora_rank,
            most_users=most_users,
            device=device,
            progress=bar,
        )
    result: dict[str, Any] = {"run": str(run), "operator_only": True, **found}
    if plot is not None:
        _draw(result, plot)
        result["plot"] = str(plot)
    emit(result, json=json, render=lambda console: _print(console, result))


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("learning rate", "loss without", "with", "per user without", "with", "gain"):
        table.add_column(name, justify="right")
    for name in ("base", "model"):
        for row in result.get(name, ()):
            table.add_row(
                name,
                f"{row['learning_rate']:g}",
                _number(row["loss_without"]),
                _number(row["loss_with"]),
                _number(row["user_loss_without"]),
                _number(row["user_loss_with"]),
                f"{row['users_who_gain']} of {row['measured_users']}",
            )
    console.print(table)
    console.print(
        f"{result['users']:,} held-out users, {result['adapted']}, {result['epochs']} epochs; left "
        f"out: {result['users_without_two_examples']:,} users with a single example, "
        f"{result['examples_over_the_cap']:,} examples over the cap. The learning rates are "
        "compared on the very halves that are measured. Operator-only, not differentially private.",
        soft_wrap=True,
        markup=False,
    )


def _draw(result: dict[str, Any], path: Path) -> None:
    """Loss over the learning rate, with and without; and the gain over users."""
    figure, (losses, gains) = panels(2)
    for name, color in (("base", "tab:gray"), ("model", "tab:blue")):
        rows = [row for row in result.get(name, ()) if row["loss_with"] is not None]
        if not rows:
            continue
        rates = [row["learning_rate"] for row in rows]
        losses.plot(rates, [r["loss_without"] for r in rows], ":", color=color, label=name)
        losses.plot(
            rates, [r["loss_with"] for r in rows], "o-", color=color, label=f"{name}, personalized"
        )
        best = min(rows, key=lambda row: float(row["loss_with"]))
        spread = best["gain_quantiles"]
        gains.plot(
            [float(q) for q in spread],
            list(spread.values()),
            "o-",
            color=color,
            label=f"{name}, learning rate {best['learning_rate']:g}",
        )
    losses.set_xscale("log")
    losses.set_xlabel("local learning rate")
    losses.set_ylabel("loss on the other half (nats per token)")
    gains.axhline(0, color="black", linewidth=0.8)
    gains.set_xlabel("quantile of users")
    gains.set_ylabel("gain (nats per token)")
    for axis in (losses, gains):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.suptitle(f"Personalization of {result['users']} held-out users (operator-only)")
    save(figure, path, operator_only=True)
