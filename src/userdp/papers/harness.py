"""Finds a figure of the papers by its name, computes it, and writes its table and its picture."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from userdp.files import require_new
from userdp.papers.table import write_csv


class Figure(StrEnum):
    """The figures: ``charles-figure-1`` is the module ``userdp.papers.charles.figure_1``."""

    CHARLES_FIGURE_1 = "charles-figure-1"
    CHARLES_FIGURE_2 = "charles-figure-2"
    CHARLES_FIGURE_3 = "charles-figure-3"
    CHARLES_FIGURE_9 = "charles-figure-9"
    CHARLES_CONJECTURE_1 = "charles-conjecture-1"
    GANESH_FIGURE_1 = "ganesh-figure-1"
    GANESH_FIGURE_2 = "ganesh-figure-2"
    MARATHE_FIGURE_1 = "marathe-figure-1"
    MARATHE_FIGURE_2 = "marathe-figure-2"
    MARATHE_FIGURE_3 = "marathe-figure-3"

    @property
    def module(self) -> Any:
        """The module that computes and draws it, imported now: some of them need torch."""
        paper, _, name = self.value.partition("-")
        return import_module(f"userdp.papers.{paper}.{name.replace('-', '_')}")


def reproduce(figure: Figure, out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Compute a figure and write ``NAME.csv`` and ``NAME.png`` into ``out``, which is made.

    Args:
        figure: which.
        out: the folder.
        overwrite: replace an earlier table and picture there.

    Returns:
        The figure's ``name``, how many ``rows`` it has, and the paths ``csv`` and ``png``.

    Raises:
        UseError: the table or the picture is there already.
        FailureError: the disk refused.
    """
    out.mkdir(parents=True, exist_ok=True)
    table, picture = out / f"{figure}.csv", out / f"{figure}.png"
    for path in (table, picture):
        require_new(path, overwrite=overwrite)
    rows = figure.module.rows()
    write_csv(rows, table)
    figure.module.draw(rows, picture)
    return {"name": str(figure), "rows": len(rows), "csv": str(table), "png": str(picture)}
