"""How many examples users hold: the histograms of Charles et al. and of Chua et al."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from papers.stores import open_stores
from papers.table import Row
from userdp.data.splits import Split
from userdp.data.statistics import describe_counts
from userdp.reporting.drawing import panels, save


def histogram_rows(stores: Mapping[str, Path]) -> list[Row]:
    """A row for each store and bin: how many training users hold ``least`` to ``most`` examples.

    Bins are powers of two, from 1 to the last one that has users. Exact, so operator-only.
    """
    return [
        {"dataset": name, "least": least, "most": most, "users": users}
        for name, store in open_stores(stores).items()
        # tokens are not in the histogram
        for least, most, users in describe_counts(
            store.split(Split.TRAIN).counts, tokens=0
        ).histogram
    ]


def draw_histograms(rows: Sequence[Row], path: Path, *, title: str, unit: str) -> None:
    """A panel for each store, both axes logarithmic; only the operator may read the file.

    Args:
        rows: of `histogram_rows`.
        path: of the picture.
        title: above all panels.
        unit: what a user holds: "examples" or "records".
    """
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    figure, axes = panels(len(names), height=3.2)
    for axis, name in zip(axes, names, strict=True):
        part = [row for row in rows if row["dataset"] == name]
        axis.stairs(
            [row["users"] for row in part],
            [part[0]["least"], *(row["most"] + 1 for row in part)],
            baseline=0.5,
            fill=True,
        )
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_ylim(bottom=0.5)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel(f"{unit} of a user")
        axis.set_ylabel("users")
        axis.grid(alpha=0.3)
    figure.suptitle(title, fontsize=10)
    save(figure, path, operator_only=True)
