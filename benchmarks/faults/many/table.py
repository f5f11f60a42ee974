"""What was played, as a section of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEGIN, END = "<!-- many: begin -->", "<!-- many: end -->"


def told(row: Mapping[str, Any]) -> str:
    """What came of it, in one sentence."""
    kills = sum(one["killed"] for one in row["turns"].values())
    wrong = len(row["problems"])
    return (
        f"{len(row['turns'])} processes in {row['seconds'] / 60:.1f} minutes: {row['charges']} "
        f"charges, {kills} kills, {row['claims']} claims held against what was charged at that "
        f"moment, {row['steps']} noisy steps watched, {len(row['purses'])} totals spent to the "
        f"last answer; {wrong or 'no'} problem{'' if wrong == 1 else 's'}"
    )


def section(row: Mapping[str, Any]) -> str:
    """The section of the page, between its marks."""
    lines = [
        "| process | commands done | refused | killed | longest wait for its turn (s) |",
        "|---|---:|---:|---:|---:|",
        *(
            f"| {name} | {one['done']} | {one['refused']} | {one['killed']} | {one['longest']} |"
            for name, one in row["turns"].items()
        ),
    ]
    table = "\n".join(lines)
    return f"""{BEGIN}

## Many at once

Eight processes on one store: two train, are killed and go on; two ask under differential privacy,
of that store and both at once of small ones with a total; one appends people, one erases people,
one reads claims and reports, one looks at exact numbers, verifies the store, and sweeps. Each
writes down, by single calls of the system, what it is about to charge and what it was told is
charged. By these notes and by an oracle that reads files and none of our code: ledgers hold every
acknowledged charge once, and none that was refused; chains hold; a claim that somebody read holds
at least what was acknowledged before, and at most what was begun by then; no total is overdrawn,
and none refuses what it has left; no noise is used twice; nobody waits for ever; nothing
half-written stays. *Refused* is what the docs say is refused: nobody is erased while a run is open,
and a run that was interrupted does not go on over a store that people were appended to.

**{told(row)}.** `make many`, {row["date"]}, source {row["key"]["digest"]}, {row["cores"]} cores.

{table}

{END}"""
