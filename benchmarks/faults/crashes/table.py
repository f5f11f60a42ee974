"""The table of the campaign, and its section of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.crashes.cases import COMMANDS, case_of

BEGIN, END = "<!-- crashes: begin -->", "<!-- crashes: end -->"


def survived(row: Mapping[str, Any]) -> bool:
    """Whether all held in a case."""
    return not row["problems"]


def table(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """One line a command; ``rows`` by the number of the case."""
    lines = [
        "| command | cases | kills survived / tried | disk errors survived / tried "
        "| charged steps lost | results compared |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for command in (*COMMANDS, "all"):
        own = [row for number, row in rows.items() if command in (case_of(number).command, "all")]
        lines.append(f"| {command} | {len(own)} | {_told(own)} |")
    return "\n".join(lines)


def _told(rows: Sequence[Mapping[str, Any]]) -> str:
    def count(name: str) -> str:
        good = sum(row[name] for row in rows if survived(row))
        return f"{good} / {sum(row[name] for row in rows)}"

    lost, compared = sum(row["lost"] for row in rows), sum(row["compared"] for row in rows)
    return f"{count('kills')} | {count('refusals')} | {lost} | {compared}"


def summary(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """How many kills and errors were survived, in one sentence."""
    kills = sum(row["kills"] for row in rows.values())
    good = sum(row["kills"] for row in rows.values() if survived(row))
    errors = sum(row["refusals"] for row in rows.values())
    good_errors = sum(row["refusals"] for row in rows.values() if survived(row))
    return (
        f"{good} of {kills} kills and {good_errors} of {errors} errors of the disk survived, "
        f"in {len(rows)} cases"
    )


def failures(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """The cases in which something did not hold, and what."""
    return "\n".join(
        f"{case_of(number).name}\n" + "\n".join(f"    {one}" for one in row["problems"])
        for number, row in sorted(rows.items())
        if not survived(row)
    )


def _sources(rows: Mapping[int, Mapping[str, Any]]) -> str:
    """On which source each case was played last; the one of most cases first."""
    counted = Counter(row["source"] for row in rows.values()).most_common()
    told = ", ".join(f"{source} ({cases})" for source, cases in counted)
    return f"source {told}" if len(counted) == 1 else f"sources (and cases) {told}"


def section(rows: Mapping[int, Mapping[str, Any]], *, date: str, cores: int) -> str:
    """The section of the page, between its marks."""
    minutes = sum(row["seconds"] for row in rows.values()) / 60
    return f"""{BEGIN}

## Crashes

Real processes of each command are killed (`SIGKILL`) at random instants, before random changes of a
file, in the middle of a write, and by a power cut that takes away all that was not synced; or the
disk is full, has an I/O error, or becomes read-only; some go on with a clock that was set back by a
day. Then the same command is given again until it ends, and may be killed on the way again.

*Survived* means that afterwards, by an oracle that reads files and none of our code: every noisy
sum that was ready to be released was in its ledger before, on the disk; no ledger lost a line, took
more steps than planned, or holds steps that its store was not charged; no noise was added to two
sums, and no state of a sampler drew two cohorts; nothing half-written is left; an error of the disk
is told as one; and what came out is, to the last bit, what comes out of a command that nobody
disturbs (of runs that lost the update of a charged step: of one that leaves out these updates).

**{summary(rows)}.** `make crash`, {date}, {_sources(rows)},
{cores} cores, {minutes:.0f} minutes.

{table(rows)}

{END}"""
