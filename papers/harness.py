"""Finds a figure of the papers by its name, computes it, and writes its table and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

from papers.table import write_csv
from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, require_new

RESULTS = Path("docs/results/papers")
"""Where the rows of trained studies lie in a checkout."""


class Figure(StrEnum):
    """The figures: ``charles-figure-1`` is the module ``papers.charles.figure_1``.

    Those in `TRAINED` are read from the rows of studies (`papers.studies`); those in
    `OF_STORES` count what user stores hold.
    """

    CHARLES_FIGURE_1 = "charles-figure-1"
    CHARLES_FIGURE_2 = "charles-figure-2"
    CHARLES_FIGURE_3 = "charles-figure-3"
    CHARLES_FIGURE_4 = "charles-figure-4"
    CHARLES_FIGURE_5 = "charles-figure-5"
    CHARLES_FIGURE_6 = "charles-figure-6"
    CHARLES_FIGURE_7 = "charles-figure-7"
    CHARLES_FIGURE_8 = "charles-figure-8"
    CHARLES_FIGURE_9 = "charles-figure-9"
    CHARLES_FIGURE_10 = "charles-figure-10"
    CHARLES_FIGURE_11 = "charles-figure-11"
    CHARLES_FIGURE_12 = "charles-figure-12"
    CHARLES_FIGURE_13 = "charles-figure-13"
    CHARLES_FIGURE_14 = "charles-figure-14"
    CHARLES_FIGURE_15 = "charles-figure-15"
    CHARLES_FIGURE_16 = "charles-figure-16"
    CHARLES_FIGURE_17 = "charles-figure-17"
    CHARLES_FIGURE_18 = "charles-figure-18"
    CHARLES_TABLE_1 = "charles-table-1"
    CHARLES_TABLE_2 = "charles-table-2"
    CHARLES_CONJECTURE_1 = "charles-conjecture-1"
    CHUA_FIGURE_3 = "chua-figure-3"
    CHUA_FIGURE_4 = "chua-figure-4"
    CHUA_FIGURE_5 = "chua-figure-5"
    CHUA_FIGURE_6 = "chua-figure-6"
    CHUA_TABLE_1 = "chua-table-1"
    CHUA_FIGURE_7 = "chua-figure-7"
    CHUA_TABLE_2 = "chua-table-2"
    CHUA_TABLE_3 = "chua-table-3"
    CHUA_TABLE_4 = "chua-table-4"
    CHUA_TABLE_5 = "chua-table-5"
    CHUA_TABLE_6 = "chua-table-6"
    CHUA_TABLE_6_ORDER = "chua-table-6-order"
    CHUA_TABLE_7 = "chua-table-7"
    CHUA_TABLE_8 = "chua-table-8"
    CHUA_TABLE_9 = "chua-table-9"
    CHUA_TABLE_10 = "chua-table-10"
    CHUA_TABLE_11 = "chua-table-11"
    GANESH_FIGURE_1 = "ganesh-figure-1"
    GANESH_FIGURE_2 = "ganesh-figure-2"
    GANESH_FIXED_SIZE = "ganesh-fixed-size"
    MARATHE_FIGURE_1 = "marathe-figure-1"
    MARATHE_FIGURE_2 = "marathe-figure-2"
    MARATHE_FIGURE_3 = "marathe-figure-3"
    WHOLE_TOOL = "whole-tool"
    WHOLE_TOOL_PARTS = "whole-tool-parts"

    @property
    def module(self) -> Any:
        """The module that computes and draws it, imported now: some of them need torch."""
        paper, _, name = self.value.partition("-")
        return import_module(f"papers.{paper}.{name.replace('-', '_')}")

    @property
    def study(self) -> Any:
        """The study that it is read from, imported now; None of what is computed on the spot."""
        if self not in TRAINED:
            return None
        module, name = TRAINED[self].split(":")
        return getattr(import_module(f"papers.{module}"), name)()


TRAINED = {
    Figure.CHARLES_FIGURE_4: "charles.els_group_size:ElsGroupSize",
    Figure.CHARLES_FIGURE_5: "charles.surface:Surface",
    Figure.CHARLES_FIGURE_6: "charles.tradeoff:Tradeoff",
    Figure.CHARLES_FIGURE_7: "charles.tradeoff:Tradeoff",
    Figure.CHARLES_FIGURE_8: "charles.users:Users",
    Figure.CHARLES_FIGURE_11: "charles.els_group_size:ElsGroupSize",
    Figure.CHARLES_FIGURE_12: "charles.els_group_size:ElsGroupSize",
    Figure.CHARLES_FIGURE_13: "charles.surface:Surface",
    Figure.CHARLES_FIGURE_14: "charles.surface:Surface",
    Figure.CHARLES_FIGURE_15: "charles.surface:Surface",
    Figure.CHARLES_FIGURE_16: "charles.tradeoff:Tradeoff",
    Figure.CHARLES_FIGURE_17: "charles.tradeoff:Tradeoff",
    Figure.CHARLES_FIGURE_18: "charles.personalization:Personalization",
    Figure.CHUA_FIGURE_4: "chua.clip_norm:ClipNorm",
    Figure.CHUA_TABLE_2: "chua.selection:Selection",
    Figure.CHUA_TABLE_3: "chua.records_per_user:RecordsPerUser",
    Figure.CHUA_TABLE_4: "chua.selection:Selection",
    Figure.CHUA_TABLE_5: "chua.records_per_user:RecordsPerUser",
    Figure.CHUA_TABLE_6: "chua.records_per_user:RecordsPerUser",
    Figure.CHUA_TABLE_6_ORDER: "chua.order:Order",
    Figure.CHUA_TABLE_8: "chua.lora:Lora",
    Figure.CHUA_TABLE_9: "chua.recipe:Recipe",
    Figure.CHUA_TABLE_10: "chua.sizes:Sizes",
    Figure.CHUA_TABLE_11: "chua.sizes:Sizes",
    Figure.GANESH_FIXED_SIZE: "ganesh.fixed_size:FixedSize",
    Figure.WHOLE_TOOL: "whole_tool:WholeTool",
    Figure.WHOLE_TOOL_PARTS: "whole_tool_parts:WholeToolParts",
}
"""Figures of trained models, and where their study is."""

OF_STORES = frozenset(
    {
        Figure.CHARLES_FIGURE_10,
        Figure.CHARLES_TABLE_1,
        Figure.CHARLES_TABLE_2,
        Figure.CHUA_FIGURE_5,
        Figure.CHUA_TABLE_1,
        Figure.CHUA_TABLE_7,
    }
)
"""Exact figures of the texts in stores: their tables and pictures are for the operator only."""


def reproduce(
    figure: Figure,
    out: Path,
    *,
    results: Path = RESULTS,
    stores: Mapping[str, Path] | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Compute a figure and write ``NAME.csv`` and ``NAME.png`` into ``out``, which is made.

    Args:
        figure: which.
        out: the folder.
        results: the folder of the rows of trained studies.
        stores: user stores by the names that the rows call them, for the figures in `OF_STORES`;
            a look is recorded in the ledger of each.
        overwrite: replace an earlier table and picture there.

    Returns:
        The figure's ``name``, how many ``rows`` it has, and the paths ``csv`` and ``png``.

    Raises:
        UseError: the table or the picture is there already, the study has no rows there, or the
            figure needs stores and has none, or has some and needs none.
        FailureError: the disk refused.
    """
    exact = figure in OF_STORES
    if exact != bool(stores):
        raise UseError(
            f"{figure} counts what user stores hold, and no store is given"
            if exact
            else f"{figure} reads no store, and one is given",
            hint="prepare texts with `userdp prepare`, and name each store: --store NAME=DIR"
            if exact
            else f"leave --store away; it is for {', '.join(sorted(OF_STORES))}",
        )
    study = figure.study
    if study is not None and not study.read(results):
        raise UseError(
            f"{figure} is read from the runs of the study {study.design}, and {results} has none",
            hint="give --results DIR of a checkout (docs/results/papers), or run the study: "
            f"python -m benchmarks.papers run {study.design}",
        )
    out.mkdir(parents=True, exist_ok=True)
    table, picture = out / f"{figure}.csv", out / f"{figure}.png"
    for path in (table, picture):
        require_new(path, overwrite=overwrite)
    shown = figure.module if study is None else study
    if study is not None:
        rows = study.rows(results)
    else:
        rows = shown.rows(stores) if exact else shown.rows()
    write_csv(rows, table, mode=OPERATOR_FILE if exact else SHAREABLE_FILE)
    shown.draw(rows, picture)
    return {
        "name": str(figure),
        "rows": len(rows),
        "csv": str(table),
        "png": str(picture),
        "operator_only": exact,
    }
