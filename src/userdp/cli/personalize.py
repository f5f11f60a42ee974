"""``userdp personalize``: what held-out users gain from a model of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from userdp.cli.output import Answer, for_whom
from userdp.commands.progress import shown
from userdp.reporting.curves import Plot, Series, save_plots
from userdp.reporting.drawing import require_drawing_place
from userdp.reporting.table import Table, table_of
from userdp.training.personalization import LocalTraining, personalize_run


def personalize(
    run: Path,
    /,
    *,
    store: Path,
    how: Annotated[LocalTraining | None, Parameter(name="*", group="Local training")] = None,
    most_users: int | None = 200,
    lora_rank: int | None = None,
    base: bool = False,
    plot: Path | None = None,
    overwrite: bool = False,
    device: str = "auto",
) -> Answer:
    """Adapt a run's model to each held-out user, and measure it on text of theirs kept back.

    Local SGD on half of each user's examples, then the loss on the other half, with and without
    (Charles et al. 2024, Appendix G.2). Exact, so operator-only; nothing is released or charged.

    Args:
        run: the folder of a finished run.
        store: the user store whose held-out users are measured.
        how: see LocalTraining.
        most_users: measure at most so many users, the first ones.
        lora_rank: adapt adapters of this rank in place of all weights.
        base: also personalize the model that the run began from.
        plot: draw the table into this file (PNG, SVG or PDF; operator-only).
        overwrite: replace the file at --plot.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """
    if plot is not None:
        require_drawing_place(plot, overwrite=overwrite)
    from userdp.data.store import UserStore

    with shown() as bar:
        measured = personalize_run(
            run,
            UserStore.open(store),
            how or LocalTraining(),
            with_base=base,
            lora_rank=lora_rank,
            most_users=most_users,
            device=device,
            progress=bar,
        )
    result: dict[str, Any] = {"run": str(run), "operator_only": True, **measured}
    if plot is not None:
        _draw(result, plot)
        result["plot"] = str(plot)
    return Answer(values=result, parts=_parts(result))


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    rows = [(name, row) for name in ("base", "model") for row in result.get(name, ())]
    yield table_of(
        rows,
        {
            "model": lambda one: one[0],
            "learning rate": lambda one: f"{one[1]['learning_rate']:g}",
            "loss without": lambda one: _number(one[1]["loss_without"]),
            "loss with": lambda one: _number(one[1]["loss_with"]),
            "per user without": lambda one: _number(one[1]["user_loss_without"]),
            "per user with": lambda one: _number(one[1]["user_loss_with"]),
            "gain": lambda one: f"{one[1]['users_who_gain']} of {one[1]['measured_users']}",
        },
    )
    yield (
        f"{result['users']:,} held-out users, {result['adapted']}, {result['epochs']} epochs; left "
        f"out: {result['users_without_two_examples']:,} users with a single example, "
        f"{result['examples_over_the_cap']:,} examples over the cap. The learning rates are "
        "compared on the very halves that are measured."
    )
    yield for_whom(operator_only=True, why="exact losses on people's text, which no epsilon covers")


def _draw(result: dict[str, Any], path: Path) -> None:
    """Loss over the learning rate, with and without; and the gain over users."""
    losses, gains = [], []
    for name in ("base", "model"):
        rows = [row for row in result.get(name, ()) if row["loss_with"] is not None]
        if not rows:
            continue
        rates = tuple(row["learning_rate"] for row in rows)
        for end, key in ((name, "loss_without"), (f"{name}, personalized", "loss_with")):
            losses.append(Series(name=end, xs=rates, ys=tuple(row[key] for row in rows)))
        best = min(rows, key=lambda row: float(row["loss_with"]))
        spread = best["gain_quantiles"]
        gains.append(
            Series(
                name=f"{name}, learning rate {best['learning_rate']:g}",
                xs=tuple(map(float, spread)),
                ys=tuple(spread.values()),
            )
        )
    loss = Plot(
        title=f"{result['users']} held-out users (operator-only)",
        x_label="local learning rate",
        y_label="loss on the other half (nats per token)",
        series=tuple(losses),
        logarithmic="x",
    )
    gain = Plot(
        title="Gain by personalization (operator-only)",
        x_label="quantile of users",
        y_label="gain (nats per token)",
        series=tuple(gains),
        level=("no gain", 0.0),
    )
    save_plots([loss, gain], path, operator_only=True)
