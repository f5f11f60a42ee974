"""The table and the picture of a design's cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.drawing import Row, panels, save
from papers.losses import TUNE, Losses
from papers.rules import personalized
from userdp.core.errors import UseError

Study = Mapping[str, Any]
"""A table ``study.NAME`` of ``figures.toml``: ``panel``, ``line``, ``x`` and ``title``."""
METHODS: Mapping[str, tuple[str, str]] = {
    "ELS of Charles et al.": ("els", "random"),
    "ULS of Charles et al.": ("uls", "random"),
    "Group Privacy of Chua et al.": ("group-privacy-vadhan", "longest"),
    "User-wise DP-SGD of Chua et al.": ("uls", "random-chunk"),
}
"""What the study ``whole-tool`` compares with ours, by the method and selection of its cells."""
BASE = {"commits": 5.2371, "shakespeare": 6.3693}
"""Held-out loss of the base model before any fine-tuning (docs/results/findings.md)."""


def rows_of_study(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row for each measured cell: the fields that tell cells apart, its loss and 95% interval.

    Where models were personalized, two rows: before, and with the best local learning rate.

    Raises:
        UseError: there are no rows.
    """
    if not rows:
        raise UseError("no run of this study is made", hint="run it: python -m papers NAME")
    if "personalization" in rows[0]:
        return [row for after in (False, True) for row in _table(study, rows, after=after)]
    return _table(study, rows)


def _table(
    study: Study, rows: Sequence[Mapping[str, Any]], *, after: bool | None = None
) -> list[Row]:
    if after is not None:
        rows = [{**row, "loss": personalized(row)[after]} for row in rows]
    losses = Losses(rows)
    table = []
    for setting in losses.settings():
        own = [r for r in rows if r["key"]["setting"] == setting and r["key"]["run"] != TUNE]
        mean = losses.mean(**setting)
        fields = {name: setting[name] for name in (*study["panel"], *study["line"], study["x"])}
        if after:
            fields["method"] = f"{fields['method']}, personalized"
        table.append(
            {
                **fields,
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


def draw_study(name: str, study: Study, rows: Sequence[Row], path: Path) -> None:
    """Loss over ``x``, with 95% intervals; a line for each ``line``, a panel for each ``panel``."""
    if name == "whole-tool":
        draw_methods(rows, path)
        return
    x = study["x"]
    titles = list(dict.fromkeys(_words(row, study["panel"]) for row in rows))
    figure, axes = panels(len(titles), rows=-(-len(titles) // 4), height=3.2)
    for axis in axes[len(titles) :]:
        axis.set_visible(False)
    for axis, title in zip(axes, titles, strict=False):
        part = [row for row in rows if _words(row, study["panel"]) == title]
        places = sorted({row[x] for row in part}, key=_number)
        labels = list(dict.fromkeys(_words(row, study["line"]) for row in part))
        for label in labels:
            own = (row for row in part if _words(row, study["line"]) == label)
            here = sorted(own, key=lambda row: _number(row[x]))
            axis.errorbar(
                [places.index(row[x]) for row in here],
                [row["loss"] for row in here],
                yerr=[row["high"] - row["loss"] if row["runs"] > 1 else 0 for row in here],
                fmt="o" if isinstance(places[0], str) else "o-",  # no line from name to name
                label=label,
                markersize=4,
                capsize=2,
            )
        axis.set_xticks(range(len(places)), [_word(place) for place in places], fontsize=7)
        axis.margins(x=0.1)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel(x.replace("_", " "))
        axis.set_ylabel("held-out loss, nats a token")
        axis.grid(alpha=0.3)
        if len(labels) > 1:
            axis.legend(fontsize=7)
    save(figure, path, title=study["title"])


def draw_methods(rows: Sequence[Row], path: Path) -> None:
    """The study ``whole-tool``: each method's loss and 95% interval; a panel for each text."""
    figure, axes = panels(len(BASE), height=2.6)
    lines = {(*own, "adamw", 2.0): f"{name}, ε = 2" for name, own in METHODS.items()}
    lines |= {("uls", "random", "adam-bc", e): f"userdp, ε = {e:g}" for e in (2.0, 1.0)}
    for axis, text in zip(axes, BASE, strict=True):
        for row in rows:
            if row["text"] == text:
                cell = row["method"], row["selection"], row["optimizer"], row["epsilon"]
                place, half = len(lines) - 1 - list(lines).index(cell), row["high"] - row["loss"]
                color = "tab:gray" if row["optimizer"] == "adamw" else "tab:blue"
                axis.errorbar(row["loss"], place, xerr=half, fmt="o", color=color, capsize=3)
        axis.axvline(BASE[text], linestyle=":", color="tab:red")
        axis.set_yticks(range(len(lines)), [*reversed(lines.values())])
        axis.set_ylim(-0.6, len(lines) - 0.4)
        axis.set_title(f"{text} (dotted: before fine-tuning)", fontsize=9)
        axis.set_xlabel("loss on held-out people, nats a token")
        axis.grid(alpha=0.3, axis="x")
    axes[1].set_yticklabels([])
    title = "Each method at equal ε, people and planned gradients; 95% intervals"
    save(figure, path, title=title)


def _words(row: Row, names: Sequence[str]) -> str:
    short = {"epsilon": "ε", "group_size": "G", "gradients": "B", "steps": "T", "lora_rank": "r"}
    return ", ".join(
        f"{short[name]} = {_word(row[name])}" if name in short else _word(row[name])
        for name in names
    )


def _word(value: Any) -> str:
    if value is None:
        return "∞"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _number(value: Any) -> tuple[float, str]:
    if value is None:
        return float("inf"), ""
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
