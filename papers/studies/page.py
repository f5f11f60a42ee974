"""The page of findings: every figure and table of the papers, its verdict, files and command."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from papers.harness import TRAINED
from papers.studies.campaign import TUNE
from papers.studies.design import read_design
from papers.studies.findings import Finding, Verdict
from papers.studies.runs import name_of
from userdp.codec import encode
from userdp.errors import UseError

DESIGNS = Path(__file__).parents[1] / "designs"
PAPERS = {
    "charles": "Charles et al. 2024",
    "chua": "Chua et al. 2024",
    "ganesh": "Ganesh 2024",
    "marathe": "Marathe et al. 2023",
}

OURS = {"whole-tool": "the whole tool", "whole-tool-parts": "its parts"}

EXPECTED = (
    *(f"charles-figure-{n}" for n in range(1, 19)),
    "charles-table-1",
    "charles-table-2",
    "charles-conjecture-1",
    *(f"chua-figure-{n}" for n in range(3, 8)),
    *(f"chua-table-{n}" for n in range(1, 13)),
    "chua-table-6-order",
    "ganesh-figure-1",
    "ganesh-figure-2",
    "ganesh-fixed-size",
    *(f"marathe-figure-{n}" for n in range(1, 4)),
    "whole-tool",
    "whole-tool-parts",
)
"""Every figure and table with numbers, and the conjecture: the page has a row of each, run or not.
(Figures 1 and 2 of Chua et al. are drawings of the method.)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row of the page.

    Args:
        finding: what is said.
        command: that makes its table and picture.
        files: links to rows and pages.
        minutes: of one core, measured; None where nobody noted it.
    """

    finding: Finding
    command: str
    files: Sequence[str]
    minutes: float | None


def trained(results: Path) -> dict[str, Entry]:
    """What the studies' rows say, by figure.

    A study of which a cell has no run yet has no verdict: its row says how many runs are made.
    """
    entries: dict[str, Entry] = {}
    for figure in TRAINED:
        study = figure.study
        path = DESIGNS / f"{study.design}.toml"
        if not path.exists():
            continue
        design, rows = read_design(path), study.read(results)
        cells = {name_of(encode(cell.setting)) for cell in design.cells}
        run = {name_of(row["key"]["setting"]) for row in rows if row["key"]["run"] != TUNE}
        own = study.findings_of(rows) if cells <= run else ()
        found = next((one for one in own if one.figure == figure), None) or Finding(
            figure=figure,
            paper="",
            here=f"{len(rows)} of {design.runs} runs made, {len(cells - run)} of {len(cells)} "
            "cells without one",
            verdict=Verdict.CANNOT_TELL,
        )
        if rows:
            found = replace(
                found, here=f"{found.here}. Gradients taken, of those planned: {_shares(rows)}"
            )
        seconds = sum(row["seconds_in_all"] for row in rows)
        entries[figure] = Entry(
            finding=found,
            command=f"python -m papers {figure}",
            files=(
                f"[design](../../papers/designs/{study.design}.toml)",
                f"[{len(rows)} runs](papers/{study.design}.jsonl)" if rows else "no runs",
            ),
            minutes=seconds / 60,
        )
    return entries


def _shares(rows: Sequence[Mapping[str, Any]]) -> str:
    """By method and G: the gradients that runs took, of those that their plans expected at most.

    Users with fewer than G examples give fewer. The least and the greatest mean of such cells.
    """
    taken: dict[tuple[str, int], dict[str, list[float]]] = {}
    for row in rows:
        own = row["key"]["setting"]
        if row["key"]["run"] != TUNE:
            cells = taken.setdefault((own["method"], own["group_size"]), {})
            share = row["gradients"] / (own["gradients"] * own["steps"])
            cells.setdefault(name_of(own), []).append(share)
    words = []
    for (method, size), cells in sorted(taken.items()):
        means = sorted(f"{fmean(shares):.2f}" for shares in cells.values())
        words.append(f"{method}, G = {size}: {' to '.join(dict.fromkeys((means[0], means[-1])))}")
    return "; ".join(words)


def written(path: Path) -> dict[str, Entry]:
    """The rows that were written by hand, from pages whose numbers are not those of a study."""
    entries = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        values: Mapping[str, Any] = table
        entries[name] = Entry(
            finding=Finding(
                figure=name,
                paper=values["paper"],
                here=values["here"],
                verdict=Verdict(values["verdict"]),
            ),
            command=values["command"],
            files=tuple(values["files"]),
            minutes=values.get("minutes"),
        )
    return entries


def page(entries: Mapping[str, Entry], *, head: str) -> str:
    """The Markdown of the page.

    Raises:
        UseError: an entry is of no figure that is expected: the list would miss it.
    """
    unknown = set(entries) - set(EXPECTED)
    if unknown:
        raise UseError(f"no figure or table is called {', '.join(sorted(unknown))}")
    lines = [head.rstrip(), "", _count(entries), ""]
    paper = ""
    for name in EXPECTED:
        own = PAPERS.get(name.partition("-")[0], "Beyond the papers")
        if own != paper:
            paper = own
            lines += ["", f"## {paper}", ""]
            lines += [
                "| | what the paper found | what we find | verdict | files and command | minutes |",
                "|---|---|---|---|---|---|",
            ]
        lines.append(_line(name, entries.get(name)))
    return "\n".join(lines) + "\n"


def _count(entries: Mapping[str, Entry]) -> str:
    verdicts = [
        entries[name].finding.verdict if name in entries else Verdict.CANNOT_TELL
        for name in EXPECTED
    ]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in Verdict)
    return f"**Of {len(EXPECTED)} figures, tables and questions: {counted}.**"


def _line(name: str, entry: Entry | None) -> str:
    title = OURS.get(name) or name.partition("-")[2].replace("-", " ")
    if entry is None:
        cells = [title, "", "not run yet", str(Verdict.CANNOT_TELL), "", ""]
    else:
        one = entry.finding
        where = f"{', '.join(entry.files)}; `{entry.command}`"
        minutes = "" if entry.minutes is None else f"{entry.minutes:.0f}"
        cells = [title, one.paper, one.here, f"**{one.verdict}**", where, minutes]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
