"""The table of planted faults, and its section of a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.faults.planted import Fault

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
_HEAD = """# Reliability

What becomes of faults that are put in on purpose, and of processes that are killed. Each section is
written by its own command.
"""


def table(faults: Sequence[Fault], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One line a fault: what it breaks, and which test noticed it; ``rows`` by the fault's name."""
    lines = [
        "| fault | breaks | what is wrong | killed by |",
        "|---|---:|---|---|",
    ]
    for fault in sorted(faults, key=lambda fault: fault.invariant):
        row = rows.get(fault.name)
        if row is None:
            told = "*not tried*"
        elif row["verdict"] == "killed":
            told = f"`{row['test'].partition('::')[2].partition('[')[0]}`"
        else:
            told = f"**{row['verdict']}** {row['why']}".strip()
        blind = " (blind)" if fault.blind else ""
        lines.append(f"| {fault.name}{blind} | {fault.invariant} | {fault.what} | {told} |")
    return "\n".join(lines)


def summary(faults: Sequence[Fault], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """How many were killed, in one sentence."""
    killed = {name for name, row in rows.items() if row["verdict"] == "killed"}
    blind = [fault.name for fault in faults if fault.blind]
    text = (
        f"{len(killed)} of {len(faults)} faults killed; of the {len(blind)} blind ones "
        f"{len(killed.intersection(blind))}"
    )
    left = sum(fault.name not in rows for fault in faults)
    return f"{text}; {left} not tried yet" if left else text


def section(
    faults: Sequence[Fault], rows: Mapping[str, Mapping[str, Any]], *, date: str, cores: int
) -> str:
    """The section of the page, between its marks."""
    seconds = sum(row["seconds"] for row in rows.values())
    return f"""{BEGIN}

## Planted faults

Each fault is planted alone in a copy of the source. Then those tests run that name the invariant
that it breaks ([invariants.md](../invariants.md)), or bear the number of its pitfall
([pitfalls.md](../concepts/pitfalls.md)). *Killed*: one of them fails, and passes without the fault.
*Blind*: written from the source alone, before any test was read.

**{summary(faults, rows)}.** `make mutants`, {date}, {cores} cores, {seconds / 60:.0f}
minutes of processor time.

{table(faults, rows)}

{END}"""


def write_section(page: Path, text: str) -> None:
    """Put a section into ``page``, in the place of the one that is there; all else stays.

    Args:
        page: Markdown.
        text: begins with a line that marks the section's beginning, and ends with one of its end.
    """
    begin, end = text.splitlines()[0], text.splitlines()[-1]
    whole = page.read_text("utf-8") if page.exists() else _HEAD
    marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if marked.search(whole):
        whole = marked.sub(lambda _: text, whole)
    else:
        whole = f"{whole.rstrip()}\n\n{text}\n"
    page.write_text(whole, "utf-8")
