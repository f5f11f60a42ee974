"""``userdp.report``: one HTML page about runs, and a summary of one sheet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from userdp.commands.arguments import folder_of, refuse, require_new
from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE, write_file
from userdp.reporting.facts import About, Facts, read_runs, read_store_total
from userdp.reporting.meaning import FALSE_ALARMS
from userdp.reporting.operator_part import read_operator
from userdp.reporting.page import compare, render_report, render_summary


def report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    out: str | Path | None = None,
    public: bool = False,
    summary: str | Path | None = None,
    store: str | Path | None = None,
    overwrite: bool = False,
    **about: Annotated[Any, About],
) -> dict[str, Any]:
    """Write a page on runs: claims, assumptions and curves.

    Epsilon is recomputed from each run's ledger, and by a second accountant where dp-accounting is
    installed and knows the price. Several runs stand side by side; runs whose claims differ in unit
    or adjacency are kept apart, and the page says so. The page needs no network, and holds a
    section for the operator only unless it is public. A summary always holds public facts only. A
    model card comes with `userdp export`.

    Example::

        userdp report run --out report.html

    Args:
        runs: a run or several, or their folders.
        out: the HTML file; whole or not at all.
        public: leave out all that no epsilon covers; the operator's files are not opened.
        summary: also, or only, write one sheet of A4 about a single run here, as HTML to print.
        store: the store of these runs, to say what was charged on its people in total so far.
        overwrite: replace what lies at out and summary.
        about: fields of `userdp.reporting.facts.About`, such as ``organisation``.

    Returns:
        The files (``report``, ``summary``); of each of the ``runs`` its claim, and what it means
        for somebody who attacks the model; whether all claims are ``comparable``, and ``warnings``
        where they are not; ``store_total``, the claim of the store's ledger, if that was asked for.

    Raises:
        UseError: there is nothing to write, a run's ledger was edited, or the store is another.
        FailureError: two accountants contradict each other about a claim.
    """
    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    folders = [folder_of(run) for run in several]
    page, sheet = (None if one is None else Path(one) for one in (out, summary))
    refuse({
        "nothing says where to write: give --out report.html, or --summary summary.html": not (
            page or sheet
        ),
        "--out and --summary name the same file: name two": page and sheet and (
            page.resolve() == sheet.resolve()
        ),
        f"--summary is about one model, and {len(folders)} runs are named: name the run whose "
        "model is released": sheet and len(folders) > 1,
    })  # fmt: skip
    for file, name in ((page, "report.html"), (sheet, "summary.html")):
        if file is not None:
            require_new(file, overwrite=overwrite, name=name)
    about = {"report_date": date.today()} | about
    facts = read_runs(folders)
    total = None if store is None else read_store_total(Path(store), facts)
    common: dict[str, Any] = {"about": About(**about), "store": total}
    written = {}  # all are rendered before any is written
    if page is not None:
        operator = None if public else [read_operator(run.path) for run in facts]
        written[page] = render_report(facts, operator=operator, **common)
    if sheet is not None:
        written[sheet] = render_summary(facts[0], **common)
    for path, text in written.items():
        mode = SHAREABLE_FILE if public or path == sheet else OPERATOR_FILE
        write_file(path, text.encode(), mode=mode)
    comparison = compare(facts)
    return {
        "report": page,
        "summary": sheet,
        "public": public,
        "runs": list(map(_told, facts)),
        "comparable": comparison.comparable,
        "warnings": comparison.warnings,
        "store_total": total,
    }


def _told(run: Facts) -> dict[str, Any]:
    """A run's claim, what it means, and what a second accountant says of it."""
    meaning, second = run.meaning, run.second
    return {
        "run": run.name,
        **run.claim.to_dict(),
        "meaning": meaning and {**asdict(meaning), "false_alarms": FALSE_ALARMS},
        "second_opinion": second and asdict(second),
    }
