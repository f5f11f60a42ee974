"""``userdp reproduce``: a figure of the papers, as CSV and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from userdp.cli.output import emit, stderr

Figure = Literal[
    "charles-figure-1",
    "charles-figure-2",
    "charles-figure-3",
    "charles-figure-9",
    "charles-conjecture-1",
    "ganesh-figure-1",
    "ganesh-figure-2",
    "marathe-figure-1",
    "marathe-figure-2",
    "marathe-figure-3",
]


def reproduce(
    name: Figure,
    /,
    *,
    out: Path = Path(),
    json: bool = False,
) -> None:
    """Compute a figure of the papers with our accountant and write NAME.csv and NAME.png.

    Args:
        name: which one.
        out: the folder to write to.
        json: print one JSON object on stdout.
    """
    from importlib import import_module

    from userdp.reporting.figures.table import write_csv

    if name.startswith("marathe"):  # these train, which a report may not
        trained = import_module("userdp.federated.figures")
        drawings = import_module("userdp.reporting.figures.marathe")
        number = name.rpartition("-")[2]
        compute, draw = (
            getattr(trained, f"figure_{number}"),
            getattr(drawings, f"draw_figure_{number}"),
        )
    else:
        figure = import_module(f"userdp.reporting.figures.{name.replace('-', '_')}")
        compute, draw = figure.rows, figure.draw
    with stderr.status(f"computing {name}"):
        rows = compute()
    out.mkdir(parents=True, exist_ok=True)
    csv, png = out / f"{name}.csv", out / f"{name}.png"
    write_csv(rows, csv)
    draw(rows, png)
    result = {"name": name, "rows": len(rows), "csv": str(csv), "png": str(png)}
    emit(
        result,
        json=json,
        render=lambda console: console.print(f"{len(rows)} rows: {csv}, {png}"),
    )
