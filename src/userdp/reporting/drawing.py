"""What all drawings share in matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, require_new, write_file

KINDS = (".png", ".svg", ".pdf", ".html")

_HTML = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>userdp</title>'
    b"<body>%s</body></html>\n"
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


def require_drawing_place(path: Path, *, overwrite: bool) -> None:
    """`UseError` unless a drawing can be put at ``path``: its folder, its kind, what is there."""
    require_new(path, overwrite=overwrite)
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
    require_drawing_place(path, overwrite=True)  # asked for by the caller, before the work
    kind = path.suffix.lower().removeprefix(".")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="svg" if kind == "html" else kind)
    content = drawn.getvalue()
    if kind == "html":
        content = _HTML % content[content.index(b"<svg") :]
    write_file(path, content, mode=OPERATOR_FILE if operator_only else SHAREABLE_FILE)
