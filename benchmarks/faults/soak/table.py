"""The tables of the soak, its picture, and its section of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"
_HEADS = {
    "runs": "runs in the store",
    "users": "users, one record each",
    "records": "records of one user",
    "steps": "steps",
}
_INHERITED = 450
"""Of a part in a lineage, as it stands in a ledger: its id, and the plan that prices it."""

Rows = Mapping[str, Sequence[Mapping[str, Any]]]


def table(rows: Rows) -> str:
    """One table a part: a line a command, and what it took at each size."""
    return "\n\n".join(_table(part, rows[part]) for part in _HEADS if part in rows)


def _table(part: str, rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = sorted({row["number"] for row in rows})
    heads = " | ".join(f"{number:,}" for number in numbers)
    lines = [f"| {_HEADS[part]} | {heads} |", "|---|" + "---:|" * len(numbers)]
    for what in dict.fromkeys(row["what"] for row in rows):
        by_number = {row["number"]: row for row in rows if row["what"] == what}
        cells = [
            f"{row['cpu']:.4g} s, {row['peak']:.0f} MB" if row else ""
            for row in map(by_number.get, numbers)
        ]
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def flat(samples: Sequence[Sequence[float]]) -> str:
    """The first and the last quarter of a run's steps, in words."""
    quarter = len(samples) // 4
    first, last = samples[: quarter + 1], samples[-quarter - 1 :]

    def each(part: Sequence[Sequence[float]]) -> float:
        return 1000 * (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0])

    return (
        f"{each(first):.1f} ms of processor time a step in the first quarter, {each(last):.1f} in "
        f"the last; {samples[0][2]:.0f} MB of memory after {samples[0][0]:,} steps, "
        f"{samples[-1][2]:.0f} MB after {samples[-1][0]:,}"
    )


def section(rows: Rows, *, date: str, cores: int) -> str:
    """The section of the page, between its marks."""
    samples = rows["steps"][0]["samples"] if "steps" in rows else []
    told = f"**{flat(samples)}.**" if samples else "The steps were not measured yet."
    return f"""{BEGIN}

## Much of everything

Each command is a process of its own, of which the kernel tells processor time and the most memory
at once; both include starting Python, and loading PyTorch where a model is needed. Nothing may grow
faster than what there is more of.

`make soak`, or a part by name, as `make soak PART=runs`; {date}, {cores} cores that did other work
too.

20,000 private steps of a tiny model, in one process: {told}

{table(rows)}

*One run more* is a run of one step from Python, its opening and its release included, the mean of
the last ten. All runs before it are parts of its claim, and the line of the store's ledger that
settles it names them: the ledger grows as the square of the runs that inherit from each other, by
some {_INHERITED} bytes a part. *verify STORE* reads each user's examples by themselves, which takes
0.3 ms a user.

{END}"""


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Processor time of a step, and memory, over the steps."""
    from userdp.reporting.drawing import panels, save

    samples = rows[0]["samples"]
    steps = [sample[0] for sample in samples]
    each = [
        1000 * (after[1] - before[1]) / (after[0] - before[0])
        for before, after in pairwise(samples)
    ]
    figure, (times, memory) = panels(2)
    times.plot(steps[1:], each)
    times.set_ylabel("processor time of a step, ms")
    memory.plot(steps, [sample[2] for sample in samples])
    memory.set_ylabel("memory of the process, MB")
    for axes in (times, memory):
        axes.set_xlabel("steps")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    save(figure, path)
