"""Every figure and table of the papers, by name: how it is computed, what it shows, the page.

`FIGURES` is ``figures.toml``, in the order of ``docs/results/findings.md``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.rows import whole_rows
from papers.design import DESIGNS, Design, read_design
from papers.drawing import Figure, write_csv
from papers.findings import Finding, Verdict, contrasts_of, finding_of
from papers.losses import TUNE, Losses
from papers.rules import RULES
from papers.runs import RESULTS, name_of
from papers.study import draw_study, rows_of_study
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE

_TABLE = tomllib.loads((Path(__file__).parent / "figures.toml").read_text(encoding="utf-8"))
FIGURES: Mapping[str, Mapping[str, Any]] = _TABLE["figure"]
STUDIES: Mapping[str, Mapping[str, Any]] = _TABLE["study"]
PAPERS = {
    "charles": "Charles et al. 2024",
    "chua": "Chua et al. 2024",
    "ganesh": "Ganesh 2024",
    "marathe": "Marathe et al. 2023",
}
OURS = {"whole-tool": "the whole tool", "whole-tool-parts": "its parts"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row of the page.

    Args:
        finding: what we find.
        files: links to rows and pages.
        minutes: of one core, measured; None where nobody noted it.
    """

    finding: Finding
    files: Sequence[str]
    minutes: float | None


def design_of(name: str) -> Design | None:
    """The design of a figure that trained models show; None of one that is computed."""
    design = FIGURES[name].get("design")
    return None if design is None else read_design(DESIGNS / f"{design}.toml")


def entry(name: str, results: Path = RESULTS) -> Entry:
    """What a figure shows, by the rows so far.

    A study of which a cell has no run yet has no verdict: its row says how many runs are made.
    """
    table, design = FIGURES[name], design_of(name)
    if design is None:
        finding = Finding(here=table["here"], verdict=Verdict(table["verdict"]))
        return Entry(finding=finding, files=table["files"], minutes=table.get("minutes"))
    rows = list(whole_rows(results / f"{design.name}.jsonl"))
    cells = {name_of(encode(setting)) for setting in design.cells}
    run = {name_of(row["key"]["setting"]) for row in rows if row["key"]["run"] != TUNE}
    if not cells <= run:
        finding = Finding(
            here=f"{len(rows)} of {design.runs} runs made, {len(cells - run)} of {len(cells)} "
            "cells without one",
            verdict=Verdict.CANNOT_TELL,
        )
    elif "rule" in table:
        finding = RULES[table["rule"]](Losses(rows), rows, table)
    else:
        finding = finding_of(contrasts_of(table, Losses(rows)), table["here"])
    found = finding.here + table.get("note", "")
    here = f"{found}. Gradients taken, of those planned: {_shares(rows)}"
    return Entry(
        finding=Finding(here=here, verdict=finding.verdict),
        files=(
            f"[design](../../papers/designs/{design.name}.toml)",
            f"[{len(rows)} runs](papers/{design.name}.jsonl)",
        ),
        minutes=sum(row["seconds_in_all"] for row in rows) / 60,
    )


def _shares(rows: Sequence[Mapping[str, Any]]) -> str:
    """By method, G and selection: gradients that runs took, of those that plans expect at most.

    Users with fewer than G examples give fewer. The least and the greatest mean of such cells.
    """
    taken: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for row in rows:
        own = row["key"]["setting"]
        if row["key"]["run"] != TUNE:
            cells = taken.setdefault((own["method"], own["group_size"], own["selection"]), {})
            share = row["gradients"] / (own["gradients"] * own["steps"])
            cells.setdefault(name_of(own), []).append(share)
    words = []
    several = len({selection for _, _, selection in taken}) > 1
    for (method, size, selection), cells in sorted(taken.items()):
        means = sorted(f"{fmean(shares):.2f}" for shares in cells.values())
        chosen = f", {selection}" if several else ""
        span = " to ".join(dict.fromkeys((means[0], means[-1])))
        words.append(f"{method}, G = {size}{chosen}: {span}")
    return "; ".join(words)


def write_figure(name: str, out: Path, *, stores: Mapping[str, Path]) -> dict[str, Any]:
    """Compute a figure and write ``NAME.csv`` and ``NAME.png`` into ``out``.

    Args:
        name: of `FIGURES`.
        out: the folder, which is made.
        stores: user stores by the names that the rows call them, for the figures that count what
            stores hold; a look is recorded in the ledger of each.

    Raises:
        UseError: nothing computes this figure, its study has no rows, or it counts stores and has
            none, or has some and counts none.
    """
    table, exact = FIGURES[name], FIGURES[name].get("stores", False)
    if exact != bool(stores):
        raise UseError(
            f"{name} counts what user stores hold, and no store is given"
            if exact
            else f"{name} reads no store, and one is given",
            hint="prepare texts with `userdp prepare`, and name each store: --store NAME=DIR"
            if exact
            else "leave --store away",
        )
    picture = out / f"{name}.png"
    out.mkdir(parents=True, exist_ok=True)
    if "design" in table:
        own = list(whole_rows(RESULTS / f"{table['design']}.jsonl"))
        rows = rows_of_study(STUDIES[table["design"]], own)
        draw_study(table["design"], STUDIES[table["design"]], rows, picture)
    elif "module" in table:
        figure: Figure = import_module(f"papers.{table['module']}").FIGURES[name]
        rows = figure.rows(stores) if exact else figure.rows()
        figure.draw(rows, picture)
    else:
        raise UseError(f"nothing computes {name}: {', '.join(table['files'])} tells of it")
    csv = out / f"{name}.csv"
    write_csv(rows, csv, mode=OPERATOR_FILE if exact else SHAREABLE_FILE)
    return {"name": name, "rows": len(rows), "csv": str(csv), "png": str(picture)}


def page(entries: Mapping[str, Entry]) -> str:
    """The Markdown of ``docs/results/findings.md``."""
    head = (Path(__file__).parent / "findings-head.txt").read_text(encoding="utf-8")
    verdicts = [one.finding.verdict for one in entries.values()]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)
    lines = [head.rstrip(), "", f"**Of {len(entries)} figures, tables and questions: {counted}.**"]
    paper = ""
    for name, one in entries.items():
        own = PAPERS.get(name.partition("-")[0], "Beyond the papers")
        if own != paper:
            paper = own
            lines += ["", f"## {paper}", ""]
            lines += [
                "| | what the paper found | what we find | verdict | files and command | minutes |",
                "|---|---|---|---|---|---|",
            ]
        title = OURS.get(name) or name.partition("-")[2].replace("-", " ")
        computed = "design" in FIGURES[name] or "module" in FIGURES[name]
        where = ", ".join(one.files) + (f"; `python -m papers {name}`" if computed else "")
        minutes = "" if one.minutes is None else f"{one.minutes:.0f}"
        verdict = f"**{one.finding.verdict}**"
        cells = [title, FIGURES[name]["paper"], one.finding.here, verdict, where, minutes]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
