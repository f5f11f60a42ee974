"""``python -m tests.gradients.campaign`` (`make influence`): see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

import tests.gradients.campaign
from tests.gradients.campaign.jobs import answered, jobs, quietly, wrong

BEGINNING = "`make influence`, "
"""With which the results on the page begin; what stands before it there explains them."""


def main() -> int:
    assert tests.gradients.campaign.__doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.gradients.campaign",
        description=tests.gradients.campaign.__doc__.splitlines()[0],
    )
    parser.add_argument(
        "--kinds", nargs="+", default=[""], help="beginnings of kinds, as in the table"
    )
    parser.add_argument("--names", nargs="+", help="only these families, accidents or numbers")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--page", type=Path, help="renew the results on this Markdown page")
    options = parser.parse_args()
    wanted = [
        job
        for job in jobs()
        if job.kind.startswith(tuple(options.kinds)) and job.name in (options.names or [job.name])
    ]
    context, rows = multiprocessing.get_context("spawn"), []
    with ProcessPoolExecutor(options.workers, context, initializer=quietly) as pool:
        for row in tqdm(pool.map(answered, wanted), total=len(wanted), mininterval=5):
            rows.append(row)
            if wrong(row):
                tqdm.write(f"WRONG {row}", file=sys.stderr)
    text = results(rows)
    if options.page is not None:
        explained = options.page.read_text("utf-8").partition(BEGINNING)[0]
        options.page.write_text(explained + text, "utf-8")
    print(text)
    return int(any(map(wrong, rows)))


def results(rows: Sequence[Mapping[str, Any]]) -> str:
    """When and where they were asked, and the answers, in Markdown; a line for each accident."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        kind = row["name"] if row["kind"] == "accidents" else row["kind"]
        groups.setdefault((kind, row["engine"]), []).append(row)
    date, minutes = datetime.now(UTC).date().isoformat(), sum(row["seconds"] for row in rows) / 60
    lines = [
        f"{BEGINNING}{date}: {len(rows):,} of {len(jobs()):,} questions; "
        f"{os.cpu_count()} CPU cores ({platform.machine()}), "
        f"{minutes:.0f} minutes of processor time;",
        f"torch {torch.__version__}, transformers {transformers.__version__}.",
        "",
        "| kind, or accident | engine | tried | certified | reference | refused | greatest ratio |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (kind, engine), group in groups.items():
        ways = [row["way"] for row in group if row["way"] != "not built"]
        counts = map(ways.count, ("certified", "reference", "refused"))
        ratios = [row["ratio"] for row in group if "ratio" in row]
        cells = (kind, engine, len(ways), *counts, f"{max(ratios):.5f}" if ratios else "—")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
