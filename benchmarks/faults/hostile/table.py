"""The table of the campaign, and its section of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.faults.hostile.corpus import Kept, read_corpus
from benchmarks.faults.hostile.targets import targets

BEGIN, END = "<!-- hostile: begin -->", "<!-- hostile: end -->"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """One line a target: its time, its cases, and what became of them."""
    lines = [
        "| target | what is read | minutes | cases | refused | read, and right |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, target in targets().items():
        own = [row for row in rows if row["target"] == name]
        lines.append(f"| {name} | {target.what} | {_told(own)} |")
    lines.append(f"| all | | {_told(rows)} |")
    return "\n".join(lines)


def _told(rows: Sequence[dict[str, Any]]) -> str:
    refused, right = (sum(row[key] for row in rows) for key in ("refused", "right"))
    cases = refused + right + sum(row["finding"] for row in rows)
    minutes = sum(row["seconds"] for row in rows) / 60
    return f"{minutes:.0f} | {cases:,} | {refused:,} | {right:,}"


def mended(kept: Sequence[Kept]) -> str:
    """One line a finding that was mended: what happened, and the case that is tried since."""
    lines = ["| finding | what happened |", "|---|---|"]
    lines += [f"| `{one.target}/{one.name}` | {one.what} |" for one in kept]
    return "\n".join(lines)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Hours, cases and findings, in one sentence."""
    cases = sum(row[key] for row in rows for key in ("right", "refused", "finding"))
    hours, computed = (sum(row[key] for row in rows) / 3600 for key in ("seconds", "computed"))
    return (
        f"{cases:,} cases in {hours:.1f} hours ({computed:.1f} of processor time, on a machine "
        f"that had other work); {len(read_corpus())} cases kept"
    )


def section(rows: Sequence[dict[str, Any]], *, date: str, cores: int, source: str) -> str:
    """The section of the page, between its marks."""
    now = [row for row in rows if row["source"] == source]
    last = sum(row[key] for row in now for key in ("right", "refused", "finding"))
    sites = sorted({f"{row['target']}: {site}" for row in now for site in row["findings"]})
    left = "\n".join(f"- {site}" for site in sites) or "None."
    return f"""{BEGIN}

## Hostile and broken files

Every kind of file that userdp reads is changed, by its bytes and by its structure (a field that is
missing, of another type, huge or there twice; NaN; nesting of 100,000 levels; paths, NULs and
surrogates for names), led by what it covers in the code (`atheris`). Where a checksum stands in the
way it is made anew, since whoever changes files on purpose does that too. Whatever the change, a
reader ends in a right result or in one clear error: in no other exception, in no more than 10 s and
300 MiB, with nothing written beside its folder or left half-written, nothing unpickled, no program
started and no network asked.

**{summary(rows)}.** `make hostile`, {date}, {cores} cores; {last:,} of the cases with source
{source}, the others with those before it.

{table(rows)}

What was found and mended, each with its case in `tests/hostile/corpus`, which
`tests/hostile/test_corpus.py` tries again:

{mended(read_corpus())}

Open findings of this source:

{left}

{END}"""
