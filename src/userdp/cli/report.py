"""``userdp report``: one HTML page about runs, and a summary of one sheet."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from userdp.cli.output import Answer
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import delta_up, round_up


def report(
    runs: list[Path],
    /,
    *,
    out: Path | None = None,
    public: bool = False,
    summary: Path | None = None,
    store: Path | None = None,
    organisation: str | None = None,
    contact: str | None = None,
    data_description: str | None = None,
    overwrite: bool = False,
) -> Answer:
    """Write one HTML page: the claim, its assumptions, the curves; and a summary.

    Epsilon is recomputed from each run's ledger, and by a second accountant. Several runs stand
    side by side; runs whose claims differ in unit or adjacency are kept apart, and the page says
    so. The page needs no network, and holds a section for the operator only unless --public is
    given. A summary always holds public facts only. A model card comes with `userdp export`.

    Args:
        runs: folders that `userdp train` wrote.
        out: the HTML file; whole or not at all.
        public: leave out all that no epsilon covers; the operator's files are not opened.
        summary: also, or only, write one sheet of A4 about a single run here, as HTML to print.
        store: the store of these runs, to say what was charged on its people in total so far.
        organisation: that releases the model, in your own words, as the next two.
        contact: whom to ask.
        data_description: what the data is; no count of it, which no epsilon covers.
        overwrite: replace the files at --out and --summary.
    """
    from userdp.api import report as api

    result = api.report(
        runs,
        out=out,
        public=public,
        summary=summary,
        store=store,
        organisation=organisation,
        contact=contact,
        data_description=data_description,
        overwrite=overwrite,
    ).to_dict()
    return Answer(values=result, parts=_parts(result))


def _parts(result: dict[str, Any]) -> Iterator[Table | str]:
    yield table_of(
        result["runs"],
        {
            "run": lambda run: run["run"],
            "epsilon": lambda run: round_up(run["epsilon"], 6),
            "delta": lambda run: delta_up(run["delta"]),
            **{name: itemgetter(name) for name in ("unit", "adjacency", "sampling", "accountant")},
        },
        key="epsilon",
    )
    for run in result["runs"]:
        yield f"{run['run']}: {run['headline']}."
    for warning in result["warnings"]:
        yield f"careful: {warning}"
    if result["store_total"] is not None:
        yield f"All on the people of the store so far: {result['store_total']['headline']}."
    if result["summary"] is not None:
        yield f"Summary: {result['summary']}. It holds public facts only."
    if result["report"] is not None:
        secret = (
            "It holds public facts only; evaluations under DP in it have a price of their own."
            if result["public"]
            else "Its last section is for the operator only: make one with --public to hand on."
        )
        yield f"Report: {result['report']}. {secret}"
