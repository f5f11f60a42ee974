"""``userdp stats``: a store in numbers, for its operator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit
from userdp.errors import UseError
from userdp.reporting.drawing import require_drawing_place, save

if TYPE_CHECKING:
    from userdp.data.statistics import SplitStatistics, StoreStatistics

_BAR_WIDTH = 40


def stats(
    store: Path,
    /,
    *,
    epsilon: float | None = None,
    ask: list[str] | None = None,
    most_examples: int = 4096,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Count a store's users and examples: exactly (operator-only), or with --epsilon under DP.

    Without --epsilon the numbers are exact, so they are for the store's operator: they are not
    differentially private, and nothing public, nor a constant of a plan, may be derived from them.
    With it they may be published; what they cost is written in the store's privacy ledger first.

    Args:
        store: the folder that `userdp prepare` wrote.
        epsilon: of all answers together, per user, add-or-remove.
        ask: users, examples, median, p1 to p99; by default users, examples and median.
        most_examples: public bound on a user's examples; larger users count as so many.
        plot: also draw the histogram of examples per user to this file (png, pdf, svg).
        json: print one JSON object on stdout.
    """
    from userdp.data.statistics import describe
    from userdp.data.store import UserStore

    if epsilon is not None:
        _release(store, epsilon=epsilon, ask=ask, most_examples=most_examples, plot=plot, json=json)
        return
    if ask is not None:
        raise UseError("--ask is for private statistics", hint="give --epsilon as well")
    if plot is not None:
        require_drawing_place(plot)
    statistics = describe(UserStore.open(store, fixed_graph=True))
    if plot is not None:
        _plot(statistics, plot)
    result = {"store": str(store), **statistics.to_dict()}
    emit(result, json=json, render=lambda console: _print(console, statistics))


def _release(
    store: Path,
    *,
    epsilon: float,
    ask: list[str] | None,
    most_examples: int,
    plot: Path | None,
    json: bool,
) -> None:
    from userdp.data.store import UserStore
    from userdp.queries import DEFAULT_STATISTICS, release

    if plot is not None:
        raise UseError("--plot draws exact counts, and --epsilon asks for private ones")
    answers = release(
        UserStore.open(store, fixed_graph=True),
        epsilon=epsilon,
        names=tuple(ask) if ask is not None else DEFAULT_STATISTICS,
        most_examples=most_examples,
    )
    guarantee = {"epsilon": epsilon, "delta": 0.0, "unit": "user", "adjacency": "add-or-remove"}
    result = {
        "store": str(store),
        "operator_only": False,
        **guarantee,
        "answers": [answer.to_dict() for answer in answers],
    }

    def show(console: Console) -> None:
        for answer in answers:
            console.print(f"{answer.value:>14,}  {answer.name}", markup=False)
        console.print(
            f"({epsilon:g}, 0)-DP per user, add-or-remove, written in the store's privacy ledger",
            markup=False,
            soft_wrap=True,
        )

    emit(result, json=json, render=show)


def _print(console: Console, statistics: StoreStatistics) -> None:
    from userdp.data.near_ids import near_hint
    from userdp.data.statistics import QUANTILES

    console.print("[bold]Operator-only[/]: exact counts, not differentially private.\n")
    console.print(
        f"{statistics.records_read:,} records read, {statistics.records_stored:,} stored; "
        f"{statistics.users:,} users, {statistics.examples:,} examples of at most "
        f"{statistics.seq_len} tokens, {statistics.tokens:,} tokens",
        soft_wrap=True,
    )
    for reason, count in {**statistics.drops, **statistics.example_drops}.items():
        console.print(f"  dropped {count:,}: {reason}", markup=False, soft_wrap=True)
    hint = near_hint(statistics.near_colliding_users or 0)
    if hint is not None:
        console.print(f"warning: {hint}", soft_wrap=True, markup=False)
    table = Table(box=None)
    table.add_column("")
    for name in statistics.splits:
        table.add_column(name, justify="right")
    splits = statistics.splits.values()
    for key in ("users", "examples", "tokens"):
        table.add_row(key, *(f"{getattr(split, key):,}" for split in splits))
    table.add_row("examples per user")
    for key in QUANTILES:
        levels = [split.examples_per_user.get(key) for split in splits]
        table.add_row(f"  {key}", *("" if n is None else f"{n:,}" for n in levels))
    means = [split.mean_examples_per_user for split in splits]
    table.add_row("  mean", *("" if mean is None else f"{mean:.1f}" for mean in means))
    console.print()
    console.print(table)
    _print_histogram(console, statistics.splits["train"])


def _print_histogram(console: Console, split: SplitStatistics) -> None:
    """Users by examples per user: bins are powers of two, bars the logarithm of the users."""
    if not split.histogram:
        return
    longest = math.log1p(max(users for _, _, users in split.histogram))
    console.print("\ntraining users by number of examples (both scales logarithmic)")
    for least, greatest, users in split.histogram:
        label = f"{least:,}" if least == greatest else f"{least:,}-{greatest:,}"
        bar = "█" * round(_BAR_WIDTH * math.log1p(users) / longest)
        console.print(f"{label:>19}  {users:>9,} {bar}", markup=False)


def _plot(statistics: StoreStatistics, path: Path) -> None:
    """The histogram as an image, in the manner of Charles et al. 2024, Figure 10."""
    from matplotlib.figure import Figure

    histogram = statistics.splits["train"].histogram
    if not histogram:
        raise UseError("the store has no training users, so there is nothing to plot")
    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    edges = [least for least, _, _ in histogram] + [histogram[-1][1] + 1]
    axes.stairs([users for _, _, users in histogram], edges, fill=True)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.8)  # so that a bin with one user shows
    axes.set_xlabel("examples per user")
    axes.set_ylabel("users")
    axes.set_title("operator-only: exact counts", fontsize=9)
    save(figure, path, operator_only=True)
