"""``userdp.report``: one HTML page about runs, and a model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.api.run import Place, folder_of
from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, require_new, write_file
from userdp.reporting.comparison import compare
from userdp.reporting.html import render_report
from userdp.reporting.meaning import FALSE_ALARMS, meaning_of_claim
from userdp.reporting.model_card import render_model_card
from userdp.reporting.operator_facts import read_operator
from userdp.reporting.run_facts import read_runs

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """What was written, and what it says.

    Args:
        out: the page, if one was asked for.
        model_card: the card, if one was asked for.
        public: whether the page holds nothing that no epsilon covers.
        runs: for each run its claim, and what it means for somebody who attacks the model.
        comparable: whether all claims are of one unit and adjacency.
        warnings: what to know when claims are compared.
    """

    out: Path | None
    model_card: Path | None
    public: bool
    runs: tuple[dict[str, Any], ...]
    comparable: bool
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp report --json`` prints."""
        return {
            "report": None if self.out is None else str(self.out),
            "model_card": None if self.model_card is None else str(self.model_card),
            "public": self.public,
            "runs": list(self.runs),
            "comparable": self.comparable,
            "warnings": list(self.warnings),
        }

    def to_pandas(self) -> pd.DataFrame:
        """One row a run: its claim."""
        import pandas as pd

        told = ("run", "epsilon", "delta", "unit", "adjacency", "sampling", "steps", "standing")
        rows = [{name: run[name] for name in told} for run in self.runs]
        return pd.DataFrame(rows).set_index("run")


def report(
    runs: Place | Sequence[Place],
    *,
    out: str | Path | None = None,
    public: bool = False,
    model_card: str | Path | None = None,
    overwrite: bool = False,
) -> Reported:
    """Write one HTML page: the claim, its assumptions, the curves; and a model card.

    Epsilon is recomputed from each run's ledger. The page needs no network, and holds a section for
    the operator only unless it is ``public``. A model card always holds public facts only.

    Args:
        runs: a run or several, or their folders.
        out: the HTML file; whole or not at all.
        public: leave out all that no epsilon covers; the operator's files are not opened.
        model_card: also, or only, write the model card of a single run here (Hugging Face format).
        overwrite: replace what lies at ``out`` and ``model_card``.

    Raises:
        UseError: there is nothing to write, or a run's ledger was edited.
    """
    several = runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs]
    folders = [folder_of(run) for run in several]
    page = None if out is None else Path(out)
    card = None if model_card is None else Path(model_card)
    if page is None and card is None:
        raise UseError(
            "report needs a place for what it writes",
            hint="--out report.html, or --model-card MODEL_CARD.md",
        )
    if page is not None:
        require_new(page, overwrite=overwrite, name="report.html")
    if card is not None:
        require_new(card, overwrite=overwrite, name="MODEL_CARD.md")
        if len(folders) != 1:
            raise UseError(
                f"a model card is of one model, and {len(folders)} runs are named",
                hint="name the run whose model is released",
            )
        if page is not None and page.resolve() == card.resolve():
            raise UseError("--out and --model-card name the same file")
    facts = read_runs(folders)
    operator = None if public or page is None else [read_operator(run.path) for run in facts]
    # Both are rendered before either is written.
    html = None if page is None else render_report(facts, operator=operator)
    markdown = None if card is None else render_model_card(facts[0])
    if page is not None and html is not None:
        write_file(page, html.encode(), mode=SHAREABLE_FILE if public else OPERATOR_FILE)
    if card is not None and markdown is not None:
        write_file(card, markdown.encode())
    comparison = compare(facts)
    meanings = [meaning_of_claim(run.claim) for run in facts]
    return Reported(
        out=page,
        model_card=card,
        public=public,
        runs=tuple(
            {
                "run": run.name,
                **run.claim.to_dict(),
                "meaning": meaning and {**asdict(meaning), "false_alarms": FALSE_ALARMS},
            }
            for run, meaning in zip(facts, meanings, strict=True)
        ),
        comparable=comparison.comparable,
        warnings=comparison.warnings,
    )
