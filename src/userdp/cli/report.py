"""``userdp report``: one HTML page about runs: the claim, its assumptions, the curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit
from userdp.guarantees import round_up


def report(
    runs: list[Path],
    /,
    *,
    out: Path,
    public: bool = False,
    json: bool = False,
) -> None:
    """Write one HTML page: the claim, its assumptions, the curves.

    Epsilon is recomputed from each run's ledger. Several runs stand side by side; runs whose
    claims differ in unit or adjacency are kept apart, and the page says so. The page needs no
    network, and holds a section for the operator alone unless --public is given.

    Args:
        runs: folders that `userdp train` wrote.
        out: the HTML file; replaced as a whole.
        public: leave out all that no epsilon covers; the operator's files are not opened.
        json: print one JSON object on stdout.
    """
    result = build_report(runs, out, public=public)
    emit(result, json=json, render=lambda console: _print(console, result))


def build_report(runs: list[Path], out: Path, *, public: bool) -> dict[str, Any]:
    """Write the page and return what the command prints."""
    from userdp.reporting.comparison import compare
    from userdp.reporting.files import require_page_place, write_page
    from userdp.reporting.html import claim_sentence, render_report
    from userdp.reporting.operator_facts import read_operator
    from userdp.reporting.run_facts import read_runs

    require_page_place(out)
    facts = read_runs(runs)
    operator = None if public else [read_operator(run.path) for run in facts]
    write_page(out, render_report(facts, operator=operator), private=not public)
    return {
        "report": str(out),
        "public": public,
        "runs": [
            {"run": run.name, **run.claim.to_dict(), "claim": claim_sentence(run)} for run in facts
        ],
        "warnings": list(compare(facts).warnings),
    }


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("run", "epsilon", "delta", "unit", "adjacency", "sampling", "accountant"):
        table.add_column(name, justify="right" if name in ("epsilon", "delta") else "left")
    for run in result["runs"]:
        table.add_row(
            run["run"],
            f"[bold]{round_up(run['epsilon'], 6)}[/]",
            f"{run['delta']:g}",
            run["unit"],
            run["adjacency"],
            run["sampling"],
            run["accountant"],
        )
    console.print(table)
    for warning in result["warnings"]:
        console.print(f"careful: {warning}", soft_wrap=True, markup=False)
    secret = (
        "It holds nothing that these epsilons do not cover."
        if result["public"]
        else "Its last section is for the operator alone: make one with --public to hand on."
    )
    console.print(f"Report: {result['report']}. {secret}", soft_wrap=True, markup=False)
