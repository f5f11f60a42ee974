"""``userdp.budget``: a store's total and what was spent of it; opened once, for its life."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.claims import Claim
from userdp.claims import claim as claim_at
from userdp.commands.answer import Part
from userdp.data.meta import read_meta
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.ledger.overview import Overview, Spent, overview
from userdp.reporting.budget_picture import draw
from userdp.reporting.drawing import require_drawing_place
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import delta_up, epsilon_up, round_up


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetView:
    """A store's ledger as people read it. Operator-only: it says when people were trained on.

    Args:
        store: its folder.
        overview: what was spent when on what, what is left, what it buys.
        claim: of the store; None while nothing was charged.
    """

    store: Path
    overview: Overview
    claim: Claim | None

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp store budget --json`` prints."""
        values = asdict(self.overview)
        return {
            "store": str(self.store),
            **values,
            "claim": None if self.claim is None else self.claim.to_dict(),
        }


def budget(
    store: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    order: float | None = None,
    reserve: float | None = None,
    plot: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> BudgetView:
    """Show what a store's people were charged; or first fix a total for its whole life.

    With epsilon and delta a budget is opened, before anything else is done with the store, and
    once. Everything that is ever released of its people then satisfies (epsilon, delta)-DP
    together, whatever is chosen by earlier releases: what would exceed it is refused. It is never
    raised, and never renewed. Without them the ledger is shown: what was spent when on what, what
    is left, and what that would buy.

    Args:
        store: a user store, or its folder.
        epsilon: of everything together; with it a budget is opened. Nothing may have been charged
            or looked at before.
        delta: of everything together; needed with epsilon, and only then.
        order: of the Rényi filter; by default the one that lets the most Gaussian noise through.
        reserve: the share of delta for releases that are known by their own (ε, δ) only, such as
            runs that draw batches of a fixed size; 0 by default.
        plot: draw what was spent when to this file (png, pdf, svg, html).
        overwrite: replace the file at plot.

    Raises:
        UseError: the store was used before, or a number is out of range; nothing was written.
    """
    if plot is not None:
        require_drawing_place(Path(plot), overwrite=overwrite)
    read_meta(path := Path(store))
    ledger = StoreLedger(path)
    if epsilon is not None and delta is not None:
        opened = RenyiFilter.opened(
            epsilon=epsilon, delta=delta, order=order, reserved=reserve or 0.0
        )
        ledger.open_budget(opened)
    elif any(one is not None for one in (epsilon, delta, order, reserve)):
        raise UseError(
            "a budget is opened by epsilon and delta together: one total for the store's life",
            hint="give --epsilon and --delta; or neither, to see what was spent",
        )
    history = ledger.history()
    view = BudgetView(
        store=path,
        overview=overview(history),
        claim=claim_at(path) if history.charges else None,
    )
    if plot is not None:
        draw(view.overview, Path(plot))
    return view


_BAR = 40


def in_words(view: BudgetView) -> Iterator[Part]:
    """What was fixed, what was spent of it when and on what, and what is left."""
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
        yield view.claim
    yield "Operator-only: this says when people's text was trained on, and on what."


def _total(seen: Overview) -> str:
    if seen.epsilon is None or seen.delta is None:
        return (
            "No total was fixed for this store: prices add up, and what was chosen after earlier "
            "releases is what was spent so far. A new store may have one: userdp store budget "
            "STORE --epsilon E --delta D"
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
