"""``userdp report``: one HTML page about runs, and a model card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

from userdp.cli.output import Answer
from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, require_place, write_file
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import delta_up, round_up


def report(
    runs: list[Path],
    /,
    *,
    out: Path | None = None,
    public: bool = False,
    model_card: Path | None = None,
) -> Answer:
    """Write one HTML page: the claim, its assumptions, the curves; and a model card.

    Epsilon is recomputed from each run's ledger. Several runs stand side by side; runs whose
    claims differ in unit or adjacency are kept apart, and the page says so. The page needs no
    network, and holds a section for the operator only unless --public is given. A model card
    always holds public facts only.

    Args:
        runs: folders that `userdp train` wrote.
        out: the HTML file; replaced as a whole.
        public: leave out all that no epsilon covers; the operator's files are not opened.
        model_card: also, or only, write the model card of a single run here (Hugging Face format).
    """
    result = build_report(runs, out, public=public, model_card=model_card)
    return Answer(values=result, parts=_parts(result))


def build_report(
    runs: list[Path], out: Path | None, *, public: bool, model_card: Path | None = None
) -> dict[str, Any]:
    """Write the page, the card or both, and return what the command prints."""
    from userdp.reporting.comparison import compare
    from userdp.reporting.html import render_report
    from userdp.reporting.meaning import FALSE_ALARMS, meaning_of_claim
    from userdp.reporting.model_card import render_model_card
    from userdp.reporting.operator_facts import read_operator
    from userdp.reporting.run_facts import read_runs

    if out is None and model_card is None:
        raise UseError(
            "report needs a place for what it writes",
            hint="--out report.html, or --model-card MODEL_CARD.md",
        )
    if out is not None:
        require_place(out, name="report.html")
    if model_card is not None:
        require_place(model_card, name="MODEL_CARD.md")
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
        write_file(out, page.encode(), mode=SHAREABLE_FILE if public else OPERATOR_FILE)
    if model_card is not None and card is not None:
        write_file(model_card, card.encode())
    comparison = compare(facts)
    meanings = [meaning_of_claim(run.claim) for run in facts]
    return {
        "report": None if out is None else str(out),
        "model_card": None if model_card is None else str(model_card),
        "public": public,
        "runs": [
            {
                "run": run.name,
                **run.claim.to_dict(),
                "meaning": meaning and {**asdict(meaning), "false_alarms": FALSE_ALARMS},
            }
            for run, meaning in zip(facts, meanings, strict=True)
        ],
        "comparable": comparison.comparable,
        "warnings": list(comparison.warnings),
    }


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
    if result["model_card"] is not None:
        yield f"Model card: {result['model_card']}. It holds public facts only."
    if result["report"] is not None:
        secret = (
            "It holds nothing that these epsilons do not cover."
            if result["public"]
            else "Its last section is for the operator only: make one with --public to hand on."
        )
        yield f"Report: {result['report']}. {secret}"
