"""The rows of the benchmark as a page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.paper_size.settings import SETTINGS, Setting
from benchmarks.step.measure import interval

_HEAD = """# What privacy costs at the papers' sizes, on a CPU

A private gradient (forward, backward, clip, sum) over an ordinary one in passes of the same
sequences: processor time of one thread, in turns in one process; peak memory of a process that
takes one of either. Noise and the optimizer are in neither. The last column counts AdamW's two
moments into both, as they are there whenever somebody trains. Float32, random weights, T = 128.

| model | G | sequences | in a pass | rounds | plain, s | private / plain | 90% interval | peak, GB: plain | private | private / plain | with AdamW |
|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|
"""  # noqa: E501  a table's head is one line


def page(found: Iterable[Mapping[str, Any]], *, date: str, machine: str) -> str:
    """The whole page.

    Args:
        found: rows of the results.
        date: of the last of them.
        machine: what they were measured on.
    """
    rounds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    peaks: dict[str, Mapping[str, Any]] = {}
    for row in found:
        if "peak" in row:
            peaks[row["setting"]] = row
        else:
            rounds[row["setting"]].append(row)
    lines = [_line(s, rounds[s.key], peaks.get(s.key)) for s in SETTINGS if s.key in rounds]
    missing = [f"{s.model}, G = {s.group}" for s in SETTINGS if s.key not in rounds]
    tail = f"\nNot measured: {'; '.join(missing)}.\n" if missing else ""
    return f"""{_HEAD}{chr(10).join(lines)}
{tail}{_others(rounds)}
`python -m benchmarks.paper_size --page docs/results/paper-size.md`, {date}; {machine}.
"""


def _line(setting: Setting, rounds: list[Mapping[str, Any]], peak: Mapping[str, Any] | None) -> str:
    plain = statistics.median(row["seconds"]["plain"] for row in rounds)
    middle, low, high = interval(
        [row["seconds"]["private"] / row["seconds"]["plain"] for row in rounds]
    )
    told = ["not measured", "", "", ""]
    if peak is not None:
        sizes, moments = peak["peak"], 8 * peak["trained"]
        told = [
            f"{sizes['plain'] / 1e9:.2f}",
            f"{sizes['private'] / 1e9:.2f}",
            f"{sizes['private'] / sizes['plain']:.2f}",
            f"{(sizes['private'] + moments) / (sizes['plain'] + moments):.2f}",
        ]
    cells = [
        setting.model,
        str(setting.group),
        str(setting.sequences),
        str(rounds[-1]["rows"]),
        str(len(rounds)),
        f"{plain:.0f}" if plain >= 10 else f"{plain:.1f}",
        f"{middle:.3f}",
        f"[{low:.3f}, {high:.3f}]",
        *told,
    ]
    return f"| {' | '.join(cells)} |"


def _others(rounds: Mapping[str, list[Mapping[str, Any]]]) -> str:
    beside = [row["seconds"] for row in rounds.get("decoder_g1", ()) if "opacus" in row["seconds"]]
    if not beside:
        return ""
    ratio = statistics.median(seconds["opacus"] / seconds["private"] for seconds in beside)
    return f"\nOpacus (ghost clipping) took {ratio:.2f} times our time on the decoder at G = 1.\n"
