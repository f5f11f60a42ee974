"""``userdp budget``: a store's total, what was spent of it, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import delta_up, epsilon_up, round_up

if TYPE_CHECKING:
    from userdp.api.budget import BudgetView
    from userdp.ledger.overview import Overview, Spent

_BAR = 40


def budget(
    store: Path,
    /,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    order: float | None = None,
    reserve: float | None = None,
    plot: Path | None = None,
    overwrite: bool = False,
) -> Answer:
    """Show what a store's people were charged; or fix a total for its whole life.

    With --epsilon and --delta a budget is opened: before anything else is done with the store, and
    once. A filter then counts all that is charged, in the order in which it is chosen, refuses what
    would exceed the total, and the whole total is claimed from the first charge on. Without them
    the ledger is shown: what was spent when on what, what is left, and what that would buy.

    Args:
        store: a user store made by userdp prepare.
        epsilon: of everything together, for the store's life; it is never raised.
        delta: of everything together, in (0, 1).
        order: of the Rényi filter; by default the one that lets the most Gaussian noise through.
        reserve: the share of delta for what is known by its own epsilon and delta only, such as
            runs that draw batches of a fixed size; none by default.
        plot: draw what was spent when to this file (png, pdf, svg, html).
        overwrite: replace the file at --plot.
    """
    if plot is not None:
        from userdp.reporting.drawing import require_drawing_place

        require_drawing_place(plot, overwrite=overwrite)
    from userdp.api.budget import budget as api

    view = api(store, epsilon=epsilon, delta=delta, order=order, reserve=reserve)
    if plot is not None:
        from userdp.reporting.budget_picture import draw

        draw(view.overview, plot)
    values = {"store": str(store), **view.to_dict()}
    return Answer(values=values, parts=_parts(view))


def _parts(view: BudgetView) -> Iterator[Table | str]:
    seen = view.overview
    yield _total(seen)
    if seen.spent is not None:
        full = min(_BAR, round(_BAR * seen.spent))
        bar = "█" * full + "░" * (_BAR - full)
        yield f"{bar} {100 * seen.spent:.1f} % spent, {100 * max(0.0, 1 - seen.spent):.1f} % left"
    for words in seen.series:
        yield f"Series: {words}."
    if seen.lines:
        yield ""
        yield _table(seen)
        yield ""
    if seen.buys is not None:
        buys = seen.buys
        yield (
            f"What is left would buy {buys.runs:,} more "
            f"{'run' if buys.runs == 1 else 'runs'} like the last ({buys.like}), or one such run "
            f"with noise multiplier {buys.noise_multiplier:.4g}, whose own epsilon is "
            f"{round_up(buys.epsilon)}."
        )
    if view.claim is not None:
        yield from claim_parts(view.claim)
    yield "Operator-only: this says when people's text was trained on, and on what."


def _total(seen: Overview) -> str:
    if seen.epsilon is None or seen.delta is None:
        return (
            "No total was fixed for this store: prices add up, and what was chosen after earlier "
            "releases is what was spent so far. A new store may have one: userdp budget STORE "
            "--epsilon E --delta D"
        )
    words = (
        f"Budget for the store's life: epsilon {epsilon_up(seen.epsilon)} at delta "
        f"{delta_up(seen.delta)}"
    )
    if seen.order is None:
        return f"{words}, by adding up."
    since = f", opened {_date(seen.opened)}" if seen.opened else ""
    return f"{words}, by a Rényi filter of order {seen.order:g}{since}."


def _table(seen: Overview) -> Table:
    return table_of(
        seen.lines,
        {
            "When (UTC)": lambda one: None if one.when is None else _date(one.when),
            "What": lambda one: one.what,
            "State": lambda one: one.state,
            "Paid by": lambda one: one.paid_by,
            "Its own ε": lambda one: round_up(one.epsilon),
            "δ": lambda one: delta_up(one.delta),
            "Share": _share,
        },
    )


def _share(line: Spent) -> str | None:
    return None if line.share is None else f"{100 * line.share:.1f} %"


def _date(when: str) -> str:
    return when[:16].replace("T", " ")
