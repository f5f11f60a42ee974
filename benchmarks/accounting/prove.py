"""The proof campaign: δ at the contour's ε, enclosed by balls, over random settings.

    python -m benchmarks.accounting prove --settings 300 [--results FILE.jsonl]

For each setting the contour accountant gives ε(δ), and the proof encloses δ(ε) anew. Every result
is appended as it comes, and settings that are in the file are skipped. The summary then asks the
accountant, as it is now, for its bracket of δ at each ε. A disagreement is a pair of brackets
without a common point, or an ε at which δ is proven to exceed the target. Times are processor
seconds on one thread.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.accounting.settings import Setting, proof_settings
from userdp.accounting.check_by_proof import steps_of
from userdp.accounting.proof import enclose_delta

FILE = Path("docs/results/proof.jsonl")
SEED = 20261122
_SECONDS = 40.0  # processor seconds for a setting; the proof limits its nodes besides


class _TooLongError(ArithmeticError):
    pass


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TooLongError("it took too long")


def prove(count: int, path: Path) -> int:
    """Run what is missing, then print a summary; 1 if anything disagrees."""
    done: dict[str, dict[str, Any]] = {}
    if path.exists():
        rows = (json.loads(line) for line in path.read_text().splitlines())
        done = {row["setting"]: row for row in rows}
    settings = proof_settings(count, SEED)
    for i, setting in enumerate(settings, 1):
        if setting.key in done:
            continue
        row = one(setting)
        done[setting.key] = row
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{i}/{count} {row.get('width', row.get('why'))} {setting.key}", file=sys.stderr)
    return summarise([done[setting.key] for setting in settings], settings)


def _meet(row: dict[str, Any], setting: Setting) -> bool:
    """Whether the accountant's bracket of δ, computed now, meets the proven one."""
    if "remove" not in row:
        return True
    contour = setting.mechanism().delta(row["epsilon"])
    lower, upper = (max(row[way][end] for way in ("remove", "add")) for end in (0, 1))
    return bool(lower <= contour.upper and contour.lower <= upper)


def one(setting: Setting) -> dict[str, Any]:
    """One setting: the contour's ε, and the enclosure of δ there."""
    epsilon = setting.mechanism().epsilon(setting.delta).upper
    row: dict[str, Any] = {"setting": setting.key, "epsilon": epsilon}
    signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
    started = time.process_time()
    try:
        found = enclose_delta(steps_of(setting.mechanism()), epsilon, size=setting.delta)
    except _TooLongError as error:
        return {**row, "why": str(error), "seconds": round(time.process_time() - started, 2)}
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    row |= {
        "remove": [found.remove.lower, found.remove.upper],
        "add": [found.add.lower, found.add.upper],
        "how": [found.remove.how, found.add.how],
        "width": float(f"{found.relative_width:.2g}"),
        "claim": "proven" if found.upper <= setting.delta else "open",
        "bits": found.bits,
        "seconds": round(found.seconds, 2),
    }
    if found.lower > setting.delta:
        row["claim"] = "contradicted"
    if found.why:
        row["why"] = found.why
    return row


def summarise(rows: list[dict[str, Any]], settings: list[Setting]) -> int:
    """Print what the results page says; 1 if anything disagrees."""
    hard = sum(s.delta < 1e-12 or s.group_size >= 64 or s.noise_multiplier < 0.4 for s in settings)
    enclosed = [row for row in rows if row.get("width", 1.0) <= 1e-6]
    apart = [
        row
        for row, setting in zip(rows, settings, strict=True)
        if row.get("claim") == "contradicted" or not _meet(row, setting)
    ]
    times = sorted(row["seconds"] for row in rows)
    print(
        json.dumps(
            {
                "settings": len(rows),
                "hard": hard,
                "two_sided_to_1e-6": len(enclosed),
                "widest_of_them": max((row["width"] for row in enclosed), default=None),
                "median_width": sorted(row.get("width", 1.0) for row in rows)[len(rows) // 2],
                "claims_proven": sum(row.get("claim") == "proven" for row in rows),
                "disagreements": [row["setting"] for row in apart],
                "unproven": [
                    {k: row.get(k) for k in ("setting", "width", "claim", "why")}
                    for row in rows
                    if row.get("width", 1.0) > 1e-6
                ],
                "seconds": round(sum(times)),
                "median_seconds": times[len(times) // 2],
                "slowest_seconds": times[-1],
            },
            indent=1,
        )
    )
    return 1 if apart else 0
