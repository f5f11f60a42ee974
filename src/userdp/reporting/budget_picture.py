"""What was spent of a store's budget when: bars that rise to the line of the total."""

from __future__ import annotations

import itertools
from pathlib import Path

from userdp.errors import UseError
from userdp.ledger.budget import Overview
from userdp.reporting.drawing import panels, save
from userdp.vocabulary import delta_up, epsilon_up


def draw(seen: Overview, path: Path) -> None:
    """Draw the spending of a store's ledger over its charges; operator-only, as the ledger is.

    Each charge is a bar that begins where the last one ended, under its date. The upper edge is the
    budget; without one, the bars are the ε of each charge by itself, added up.

    Raises:
        UseError: nothing was charged, or the place or the kind of file is none.
    """
    if not seen.lines:
        raise UseError(
            "nothing was charged in this store yet: there is nothing to draw",
            hint="leave --plot out",
        )
    budgeted = seen.spent is not None
    heights = [
        (100 * (one.share or 0.0) if budgeted else min(one.epsilon, 1e6)) for one in seen.lines
    ]
    bottoms = [0.0, *itertools.accumulate(heights)][: len(heights)]
    figure, [axis] = panels(1, width=max(5.0, 1.5 + 0.45 * len(heights)), height=3.6)
    colors = ["#2f6f9f" if one.state == "settled" else "#9fc3dc" for one in seen.lines]
    axis.bar(range(len(heights)), heights, bottom=bottoms, color=colors, width=0.8)
    labels = [(one.when or "?")[:10] for one in seen.lines]
    axis.set_xticks(range(len(heights)), labels, rotation=60, ha="right", fontsize=8)
    if budgeted:
        axis.axhline(100, color="#b03a2e", linewidth=1.2)
        axis.set_ylim(0, 105)
        axis.set_ylabel(
            f"% of ε = {epsilon_up(seen.epsilon or 0.0)} at δ = {delta_up(seen.delta or 0.0)}"
        )
        axis.set_title(f"{100 * (seen.spent or 0.0):.0f} % spent", fontsize=10)
    else:
        axis.set_ylabel("ε, each charge by itself")
        axis.set_title("no total was fixed: prices add up", fontsize=10)
    save(figure, path, operator_only=True)
