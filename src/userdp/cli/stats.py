"""``userdp stats``: a store in numbers, for its operator."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.cli.output import Answer, for_whom
from userdp.codec import encode
from userdp.errors import UseError
from userdp.reporting.curves import Plot, Series, save_plots
from userdp.reporting.drawing import require_drawing_place
from userdp.reporting.table import Table
from userdp.vocabulary import epsilon_up

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
    overwrite: bool = False,
) -> Answer:
    """Count a store's users and examples: exactly (operator-only), or with --epsilon under DP.

    Without --epsilon the numbers are exact, so they are for the store's operator: they are not
    differentially private, and nothing public, nor a constant of a plan, may be derived from them.
    With it they may be published; what they cost is written in the store's privacy ledger first.

    Args:
        store: the folder that `userdp prepare` wrote.
        epsilon: of all answers together, per user, add-or-remove.
        ask: users, examples, median, p1 to p99; by default users, examples and median.
        most_examples: public bound on a user's examples; a user with more counts as having so many.
        plot: also draw the histogram of examples per user to this file (png, pdf, svg).
        overwrite: replace the file at --plot.
    """
    from userdp.data.statistics import describe
    from userdp.data.store import UserStore
    from userdp.ledger import StoreLedger

    if epsilon is not None:
        if plot is not None:
            raise UseError("--plot draws exact counts, and --epsilon asks for private ones")
        return _released(store, epsilon=epsilon, ask=ask, most_examples=most_examples)
    if ask is not None:
        raise UseError("--ask is for private statistics", hint="give --epsilon as well")
    if plot is not None:
        require_drawing_place(plot, overwrite=overwrite)
    opened = UserStore.open(store, fixed_graph=True)
    StoreLedger(store).look("stats")
    statistics = describe(opened)
    if plot is not None:
        _plot(statistics, plot)
    return Answer(values={"store": str(store), **statistics.to_dict()}, parts=_exact(statistics))


def _released(store: Path, *, epsilon: float, ask: list[str] | None, most_examples: int) -> Answer:
    from userdp.data.store import UserStore
    from userdp.queries import DEFAULT_STATISTICS, release

    answers = release(
        UserStore.open(store, fixed_graph=True),
        epsilon=epsilon,
        names=tuple(ask) if ask is not None else DEFAULT_STATISTICS,
        most_examples=most_examples,
    )
    return Answer(
        values={
            "store": str(store),
            "operator_only": False,
            "epsilon": epsilon,
            "delta": 0.0,
            "unit": "user",
            "adjacency": "add-or-remove",
            "answers": encode(answers),
        },
        parts=[
            *(f"{answer.value:>14,}  {answer.name}" for answer in answers),
            f"({epsilon_up(epsilon)}, 0)-DP per user, add-or-remove, written in the store's "
            "privacy ledger",
            for_whom(operator_only=False, why="released under DP, at this price"),
        ],
    )


def _exact(statistics: StoreStatistics) -> Iterator[Table | str]:
    from userdp.data.near_ids import near_hint
    from userdp.data.statistics import QUANTILES

    words = "exact counts of people and of their text, which no epsilon covers"
    yield f"{for_whom(operator_only=True, why=words)}\n"
    yield (
        f"{statistics.records_read:,} records read, {statistics.records_stored:,} stored; "
        f"{statistics.users:,} users, {statistics.examples:,} examples of at most "
        f"{statistics.seq_len} tokens, {statistics.tokens:,} tokens"
    )
    for reason, count in {**statistics.drops, **statistics.example_drops}.items():
        yield f"  dropped {count:,}: {reason}"
    hint = near_hint(statistics.near_colliding_users or 0)
    if hint is not None:
        yield f"warning: {hint}"
    splits = statistics.splits.values()
    levels = {key: [split.examples_per_user.get(key) for split in splits] for key in QUANTILES}
    means = [split.mean_examples_per_user for split in splits]
    yield ""
    yield Table(
        columns=("", *statistics.splits),
        rows=[
            *(
                (key, *(f"{getattr(split, key):,}" for split in splits))
                for key in ("users", "examples", "tokens")
            ),
            ("examples per user", *("" for _ in splits)),
            *(
                (f"  {key}", *("" if level is None else f"{level:,}" for level in row))
                for key, row in levels.items()
            ),
            ("  mean", *("" if mean is None else f"{mean:.1f}" for mean in means)),
        ],
    )
    yield from _histogram(statistics.splits["train"])


def _histogram(split: SplitStatistics) -> Iterator[str]:
    """Users by examples per user: bins are powers of two, bars the logarithm of the users."""
    if not split.histogram:
        return
    longest = math.log1p(max(users for _, _, users in split.histogram))
    yield "\ntraining users by number of examples (both scales logarithmic)"
    for least, greatest, users in split.histogram:
        label = f"{least:,}" if least == greatest else f"{least:,}-{greatest:,}"
        bar = "█" * round(_BAR_WIDTH * math.log1p(users) / longest)
        yield f"{label:>19}  {users:>9,} {bar}"


def _plot(statistics: StoreStatistics, path: Path) -> None:
    """The histogram as an image, in the manner of Charles et al. 2024, Figure 10."""
    histogram = statistics.splits["train"].histogram
    if not histogram:
        raise UseError("the store has no training users, so there is nothing to plot")
    # Each bin goes from its least number of examples to the next bin's: a step there and back.
    edges = [*(least for least, _, _ in histogram), histogram[-1][1] + 1]
    plot = Plot(
        title="operator-only: exact counts",
        x_label="examples per user",
        y_label="users",
        series=(
            Series(
                name="users",
                xs=tuple(float(edge) for pair in itertools.pairwise(edges) for edge in pair),
                ys=tuple(float(users) for _, _, users in histogram for _ in range(2)),
                marked=False,
            ),
        ),
        logarithmic="xy",
    )
    save_plots([plot], path, operator_only=True)
