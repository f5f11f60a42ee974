"""The page of the campaign's results."""

from __future__ import annotations

from typing import Any

_HEAD = """# Influence of one unit

By how much leaving out one unit u moves the clipped sum, over C: ‖S(D) − S(D∖u)‖ / C. Every engine
must keep it at most 1 whatever the shapes. A case is a tiny model (GPT-2, Llama, Qwen2, Mixtral, or
one made by hand around a shape that can be taken wrong), a loss, two to four units of one to three
rows, a random unit that leaves, and C at 0.05 to 3 times the median norm. Odd cases have equal
rows, even ones ragged rows, half of these with a count of targets that the number of rows divides.

*Fell back*: the reference engine computed, since it was not proved that rows are kept apart.
*Refused*: the loss or the model couples rows (or, for a sharded model, rows are not seen to be kept
apart, and there is no reference engine), which is found on made-up rows, before anything is
charged.

`make influence`, {date}, {cores} CPU cores, one thread, {minutes:.0f} minutes of processor time in
all; single cases go to `influence.jsonl` beside this page, which is not kept.

| engine | kind | cases | largest ratio | clipped | fell back | refused |
|---|---|---:|---:|---:|---:|---:|
"""


def page(rows: list[dict[str, Any]], *, date: str, cores: int) -> str:
    """All of it in Markdown."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["engine"], row["kind"]), []).append(row)
    minutes = sum(row["seconds"] for row in rows) / 60
    lines = [_line(*key, group) for key, group in sorted(groups.items())]
    return _HEAD.format(date=date, cores=cores, minutes=minutes) + "\n".join(lines) + "\n"


def _line(engine: str, kind: str, rows: list[dict[str, Any]]) -> str:
    answered = [row for row in rows if "ratio" in row]
    largest = f"{max(row['ratio'] for row in answered):.5f}" if answered else "—"
    clipped = sum(row["clipped"] > 0 for row in answered)
    fell_back = sum(row["fell_back"] for row in answered)
    refused = len(rows) - len(answered)
    return f"| {engine} | {kind} | {len(rows)} | {largest} | {clipped} | {fell_back} | {refused} |"
