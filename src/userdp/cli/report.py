"""``userdp report``: one HTML page about runs, and a model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from userdp.cli.output import emit
from userdp.errors import UseError
from userdp.vocabulary import delta_up, round_up


def report(
    runs: list[Path],
    /,
    *,
    out: Path | None = None,
    public: bool = False,
    model_card: Path | None = None,
    json: bool = False,
) -> None:
    """Write one HTML page: the claim, its assumptions, the curves; and a model card.

    Epsilon is recomputed from each run's ledger. Several runs stand side by side; runs whose
    claims differ in unit or adjacency are kept apart, and the page says so. The page needs no
    network, and holds a section for the operator alone unless --public is given. A model card
    holds public facts alone, always.

    Args:
        runs: folders that `userdp train` wrote.
        out: the HTML file; replaced as a whole.
        public: leave out all that no epsilon covers; the operator's files are not opened.
        model_card: also, or only, write the model card of a single run here (Hugging Face format).
        json: print one JSON object on stdout.
    """
    result = build_report(runs, out, public=public, model_card=model_card)
    emit(result, json=json, render=lambda console: _print(console, result))


def build_report(
    runs: list[Path], out: Path | None, *, public: bool, model_card: Path | None = None
) -> dict[str, Any]:
    """Write the page, the card or both, and return what the command prints."""
    from userdp.reporting.comparison import compare
    from userdp.reporting.files import require_page_place, write_page
    from userdp.reporting.html import claim_sentence, render_report
    from userdp.reporting.meaning import meaning_of_claim
    from userdp.reporting.model_card import render_model_card
    from userdp.reporting.operator_facts import read_operator
    from userdp.reporting.run_facts import read_runs

    if out is None and model_card is None:
        raise UseError(
            "report needs a place for what it writes",
            hint="--out report.html, or --model-card MODEL_CARD.md",
        )
    if out is not None:
        require_page_place(out)
    if model_card is not None:
        require_page_place(model_card, flag="--model-card", name="MODEL_CARD.md")
        if len(runs) != 1:
            raise UseError(
                f"a model card is of one model, and {len(runs)} runs are named",
                hint="name the run whose model is released",
            )
        if out is not None and out.resolve() == model_card.resolve():
            raise UseError("--out and --model-card name the same file")
    facts = read_runs(runs)
    operator = None if public or out is None else [read_operator(run.path) for run in facts]
    page = None if out is None else render_report(facts, operator=operator)
    card = None if model_card is None else render_model_card(facts[0])
    if out is not None and page is not None:
        write_page(out, page, private=not public)
    if model_card is not None and card is not None:
        write_page(model_card, card, private=False)
    comparison = compare(facts)
    return {
        "report": None if out is None else str(out),
        "model_card": None if model_card is None else str(model_card),
        "public": public,
        "runs": [
            {
                "run": run.name,
                **run.claim.to_dict(),
                "claim": claim_sentence(run),
                "meaning": None
                if (said := meaning_of_claim(run.claim)) is None
                else said.to_dict(),
            }
            for run in facts
            for meaning in [meaning_of_claim(run.claim)]
        ],
        "comparable": comparison.comparable,
        "warnings": list(comparison.warnings),
    }


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("run", "epsilon", "delta", "unit", "adjacency", "sampling", "accountant"):
        table.add_column(name, justify="right" if name in ("epsilon", "delta") else "left")
    for run in result["runs"]:
        table.add_row(
            escape(run["run"]),
            f"[bold]{round_up(run['epsilon'], 6)}[/]",
            delta_up(run["delta"]),
            run["unit"],
            run["adjacency"],
            run["sampling"],
            run["accountant"],
        )
    console.print(table)
    for warning in result["warnings"]:
        console.print(f"careful: {warning}", soft_wrap=True, markup=False)
    if result["model_card"] is not None:
        console.print(
            f"Model card: {result['model_card']}. It holds public facts alone.",
            soft_wrap=True,
            markup=False,
        )
    if result["report"] is None:
        return
    secret = (
        "It holds nothing that these epsilons do not cover."
        if result["public"]
        else "Its last section is for the operator alone: make one with --public to hand on."
    )
    console.print(f"Report: {result['report']}. {secret}", soft_wrap=True, markup=False)
