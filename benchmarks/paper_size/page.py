"""The rows of the benchmark as a page."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.gpu.setting import DECODER
from benchmarks.paper_size.settings import SETTINGS, Setting
from benchmarks.step import interval

_HEAD = """# What privacy costs at the papers' sizes, on a CPU

A private gradient (forward, backward, clip, sum) over an ordinary one in passes of the same
sequences: processor time of one thread, in turns in one process; peak memory of a process that
takes one of either, where glibc returns freed memory at once. Noise and the optimizer are in
neither. The last column counts AdamW's two moments into both, as they are there whenever somebody
trains. Float32, random weights, T = 128.

The goals: time at most 1.02 of plain training's under LoRA at GPT-2's sizes, and where all weights
of the decoder train 1.12 at G = 1 and 1.08 at G ≥ 4; peak memory at most 1.1 of it.

| model | G | sequences | in a pass | rounds | plain, s | private / plain | 90% interval | from the goal | peak, GB: plain | private | private / plain | from the goal | with AdamW |
|---|---:|---:|---:|---:|---:|---:|---|---|---:|---:|---:|---|---:|
"""  # noqa: E501  a table's head is one line

_MEMORY_GOAL = 1.1


def _time_goal(setting: Setting) -> float | None:
    if setting.llama:
        return None
    if setting.rank is not None:
        return 1.02
    if setting.shape != DECODER or 1 < setting.group < 4:
        return None
    return 1.12 if setting.group == 1 else 1.08


def _distance(ratio: float, goal: float | None) -> str:
    if goal is None:
        return "no goal"
    return f"met ({ratio - goal:+.3f})" if ratio <= goal else f"missed by {ratio - goal:.3f}"


def page(
    found: Iterable[Mapping[str, Any]],
    *,
    date: str,
    machine: str,
) -> str:
    """The whole page.

    Args:
        found: rows of the results.
        date: of the last of them.
        machine: what they were measured on.
    """
    rounds, peaks = _by_setting(found)
    lines = [_line(s, rounds[s.key], peaks.get(s.key)) for s in SETTINGS if s.key in rounds]
    missing = [f"{s.model}, G = {s.group}" for s in SETTINGS if s.key not in rounds]
    tail = f"\nNot measured: {'; '.join(missing)}.\n" if missing else ""
    return f"""{_HEAD}{chr(10).join(lines)}
{tail}{_others(rounds)}{_load(rounds)}
`python -m benchmarks.paper_size --page docs/results/paper-size.md`, {date}; {machine}.
"""


def _by_setting(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, list[Mapping[str, Any]]], dict[str, Mapping[str, Any]]]:
    """The rounds and the peak of each setting, by its key."""
    rounds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    peaks: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if "peak" in row:
            peaks[row["setting"]] = row
        else:
            rounds[row["setting"]].append(row)
    return rounds, peaks


def _line(setting: Setting, rounds: list[Mapping[str, Any]], peak: Mapping[str, Any] | None) -> str:
    plain = _plain_seconds(rounds)
    middle, low, high = interval(_ratios(rounds))
    told = ["not measured", "", "", "", ""]
    if peak is not None:
        sizes, moments = peak["peak"], 8 * peak["trained"]
        told = [
            f"{sizes['plain'] / 1e9:.2f}",
            f"{sizes['private'] / 1e9:.2f}",
            f"{sizes['private'] / sizes['plain']:.2f}",
            _distance(sizes["private"] / sizes["plain"], _MEMORY_GOAL),
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
        _distance(middle, _time_goal(setting)),
        *told,
    ]
    return f"| {' | '.join(cells)} |"


def _plain_seconds(rounds: list[Mapping[str, Any]]) -> float:
    return float(statistics.median(row["seconds"]["plain"] for row in rounds))


def _ratios(rounds: list[Mapping[str, Any]]) -> list[float]:
    return [row["seconds"]["private"] / row["seconds"]["plain"] for row in rounds]


def _load(rounds: Mapping[str, list[Mapping[str, Any]]]) -> str:
    loads = [row["load"] for setting in SETTINGS for row in rounds.get(setting.key, ())]
    if not loads:
        return ""
    return f"""
The machine's load was {min(loads):.1f} to {max(loads):.1f}, of which the benchmark is 1; the rest
was other work. Programs that share caches and memory slow each other down, and not every round
alike.
"""


def _others(rounds: Mapping[str, list[Mapping[str, Any]]]) -> str:
    beside = [row["seconds"] for row in rounds.get("decoder_g1", ()) if "opacus" in row["seconds"]]
    if not beside:
        return ""
    ratio = statistics.median(seconds["opacus"] / seconds["private"] for seconds in beside)
    return f"\nOpacus (ghost clipping) took {ratio:.2f} times our time on the decoder at G = 1.\n"
