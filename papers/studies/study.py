"""`Study`: the table and the picture of a design's cells, which all trained figures share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from papers.studies.findings import Finding
from papers.studies.intervals import Losses
from papers.studies.runs import read_rows
from papers.table import Row
from userdp.reporting.drawing import panels, save


class Study(ABC):
    """What one design shows.

    Attributes:
        design: its name.
        figures: the names for ``python -m papers`` that it serves.
        panel: the fields of a setting that tell panels apart.
        line: those that tell the lines of a panel apart.
        x: the field along the abscissa.
        none: what that field is called there where it has no value.
        title: above the picture.
    """

    design: ClassVar[str]
    figures: ClassVar[tuple[str, ...]]
    panel: ClassVar[tuple[str, ...]]
    line: ClassVar[tuple[str, ...]]
    x: ClassVar[str]
    none: ClassVar[str] = "∞"
    title: ClassVar[str]

    @abstractmethod
    def findings(self, losses: Losses) -> list[Finding]:
        """Verdicts; the contrasts are fixed in code before the design's first run.

        Raises:
            LookupError: cells that a verdict needs have not been run.
        """

    def findings_of(self, rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
        """Verdicts from the rows; see `findings`."""
        return self.findings(Losses(rows))

    def read(self, results: Path) -> list[dict[str, Any]]:
        """The rows of the design in a folder of results."""
        return read_rows(results / f"{self.design}.jsonl")

    def rows(self, results: Path) -> list[Row]:
        """A row for each cell that was measured: the fields that tell cells apart, and its loss."""
        read = self.read(results)
        losses = Losses(read)
        fields = tuple(dict.fromkeys((*self.panel, *self.line, self.x)))
        table = []
        for setting in losses.settings():
            own = [
                row
                for row in read
                if row["key"]["setting"] == setting and row["key"]["run"] != "tune"
            ]
            mean = losses.mean(**setting)
            table.append(
                {name: setting[name] for name in fields}
                | {
                    "loss": mean.value,
                    "low": mean.low,
                    "high": mean.high,
                    "runs": len(own),
                    "rate": own[0]["key"]["rate"],
                    "noise_multiplier": own[0]["noise_multiplier"],
                    "seconds": sum(row["seconds_in_all"] for row in own),
                }
            )
        return table

    def draw(self, rows: Sequence[Row], path: Path) -> None:
        """Loss over `x`, with 95% intervals; a line for each `line`, a panel for each `panel`."""
        titles = list(dict.fromkeys(_words(row, self.panel) for row in rows))
        figure, axes = panels(len(titles), rows=max(1, -(-len(titles) // 4)), height=3.2)
        for axis in axes[len(titles) :]:
            axis.set_visible(False)
        for axis, title in zip(axes, titles, strict=False):
            part = [row for row in rows if _words(row, self.panel) == title]
            places = sorted({row[self.x] for row in part}, key=_number)
            between = "" if isinstance(places[0], str) else "-"  # no line from name to name
            labels = list(dict.fromkeys(_words(row, self.line) for row in part))
            for label in labels:
                here = sorted(
                    (row for row in part if _words(row, self.line) == label),
                    key=lambda row: _number(row[self.x]),
                )
                axis.errorbar(
                    [places.index(row[self.x]) for row in here],
                    [row["loss"] for row in here],
                    yerr=[row["high"] - row["loss"] if row["runs"] > 1 else 0 for row in here],
                    fmt=f"o{between}",
                    label=label,
                    markersize=4,
                    capsize=2,
                )
            names = [_word(place, none=self.none) for place in places]
            axis.set_xticks(range(len(places)), names, fontsize=7)
            axis.margins(x=0.1)
            axis.set_title(title, fontsize=9)
            axis.set_xlabel(self.x.replace("_", " "))
            axis.set_ylabel("held-out loss, nats a token")
            axis.grid(alpha=0.3)
            if len(labels) > 1:
                axis.legend(fontsize=7)
        figure.suptitle(self.title, fontsize=10)
        save(figure, path)


def _words(row: Row, names: tuple[str, ...]) -> str:
    return ", ".join(_named(name, row[name]) for name in names)


def _named(name: str, value: Any) -> str:
    short = {"epsilon": "ε", "group_size": "G", "gradients": "B", "steps": "T", "lora_rank": "r"}
    return f"{short[name]} = {_word(value)}" if name in short else _word(value)


def _word(value: Any, *, none: str = "∞") -> str:
    if value is None:
        return none
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _number(value: Any) -> tuple[float, str]:
    if value is None:
        return float("inf"), ""
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
