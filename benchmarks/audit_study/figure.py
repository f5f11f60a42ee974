"""The rows as a figure."""

from __future__ import annotations

from pathlib import Path

from benchmarks.audit_study.report import area_in_words
from benchmarks.audit_study.setting import ATTACKED, PLAIN, TEXTS
from papers.studies.runs import Row


def draw(rows: list[Row], path: Path) -> None:
    """Bounds beside the claims, and the attack's curves."""
    from userdp.reporting.drawing import panels, save

    figure, axes = panels(1 + len(TEXTS), width=4.6, height=4.2)
    right = sorted(
        (row for row in rows if row["key"]["run"] == "right"), key=lambda row: row["claimed"]
    )
    claims = [row["claimed"] for row in right]
    places = list(range(len(right)))
    axes[0].plot(places, claims, "k_", markersize=14, label="claimed ε")
    axes[0].plot(places, [row["steps_lower"] for row in right], "^", label="steps prove")
    axes[0].plot(places, [row["canaries_lower"] for row in right], "o", label="canaries prove")
    most = [row["canaries_most_detectable"] for row in right]
    axes[0].plot(places, most, ":", color="tab:gray", label="canaries could prove")
    axes[0].set_xlabel("right runs, by claim")
    axes[0].set_xticks([])
    axes[0].set_ylabel("ε")
    axes[0].set_ylim(bottom=-0.1)
    axes[0].legend(fontsize=7)
    for axis, text in zip(axes[1:], TEXTS, strict=True):
        for row in rows:
            if row["key"]["text"] != text or row["key"]["run"] != ATTACKED:
                continue
            for name, style in (("references", "-"), ("inference", "--")):
                found = row[name]
                false, true = zip(*found["curve"], strict=True)
                label = "ULS, ε = 4" if "claimed" in row else PLAIN
                label += ", references" if name == "references" else ", base model"
                color = "tab:green" if "claimed" in row else "tab:red"
                label += f": {area_in_words(found)}"
                axis.plot(false, true, style, color=color, label=label)
        axis.plot([0, 1], [0, 1], ":", color="tab:gray", label="chance")
        axis.set_title(f"user inference, {text}", size=9)
        axis.set_xlabel("false positive rate")
        axis.set_ylabel("true positive rate")
        axis.legend(fontsize=7)
    for axis in axes:
        axis.grid(alpha=0.3)
    save(figure, path)
