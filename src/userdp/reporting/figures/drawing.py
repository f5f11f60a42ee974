"""What the figures share in matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from userdp.errors import FailureError, UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, write_file

Row = dict[str, Any]

KINDS = (".png", ".svg", ".pdf", ".html")

_HTML = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>userdp</title>'
    b"<body>%s</body></html>\n"
)

GROUP_LINES = (
    ("epsilon", "mixture of Gaussians (ours)", "o-", "tab:blue"),
    ("epsilon_best_from_curve", "best from one (ε, δ)", "^--", "tab:green"),
    ("epsilon_vadhan", "Vadhan's lemma", "s--", "tab:orange"),
    ("epsilon_linear", "k·ε₁ (reference, no bound)", ":", "tab:gray"),
)


def panels(count: int, *, width: float = 4.2, height: float = 3.6, rows: int = 1) -> Any:
    """(figure, flat list of axes), drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = math.ceil(count / rows)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def require_drawing_place(path: Path) -> None:
    """`UseError` unless a drawing can be put at ``path``, by its folder and its kind."""
    if not path.parent.is_dir():
        raise UseError(f"there is no folder {path.parent} to draw into")
    if path.is_dir():
        raise UseError(f"{path} is a folder, and a file is to be drawn there")
    if path.suffix.lower() not in KINDS:
        raise UseError(
            f"cannot draw a {path.suffix!r} file", hint=f"end the name in one of {', '.join(KINDS)}"
        )


def save(figure: Any, path: Path, *, operator_only: bool = False) -> None:
    """Write a figure, whole or not at all; HTML is one page without a script, around an SVG.

    Args:
        figure: of matplotlib.
        path: its ending chooses the kind.
        operator_only: it shows exact numbers about people, so that only its owner may read it.

    Raises:
        UseError: the kind is unknown, or the folder is not there.
        FailureError: the disk refused; what was there before is unchanged.
    """
    require_drawing_place(path)
    kind = path.suffix.lower().removeprefix(".")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="svg" if kind == "html" else kind)
    content = drawn.getvalue()
    if kind == "html":
        content = _HTML % content[content.index(b"<svg") :]
    try:
        write_file(path, content, mode=OPERATOR_FILE if operator_only else SHAREABLE_FILE)
    except OSError as error:
        raise FailureError(f"cannot write {path}: {error.strerror}") from error


def draw_groups(rows: Sequence[Row], path: Path, *, title: str, noise_label: str) -> None:
    """ε over the group size, a panel for each noise multiplier; lines end where they diverge."""
    noises = sorted({row["noise_multiplier"] for row in rows})
    figure, axes = panels(len(noises))
    for axis, noise in zip(axes, noises, strict=True):
        part = sorted(
            (r for r in rows if r["noise_multiplier"] == noise), key=lambda r: r["group_size"]
        )
        for key, label, style, color in GROUP_LINES:
            finite = [(r["group_size"], r[key]) for r in part if math.isfinite(r[key])]
            axis.plot(*zip(*finite, strict=True), style, color=color, label=label, markersize=4)
            if len(finite) < len(part):
                axis.plot(*finite[-1], "x", color=color, markersize=10, markeredgewidth=2)
        axis.set_yscale("log")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(f"{noise_label} = {noise:g}")
        axis.set_xlabel("group size")
        axis.set_ylabel("ε")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.suptitle(f"{title}   (× : diverges after this point)", fontsize=10)
    save(figure, path)
