"""``python -m tests.gradients.campaign`` (`make influence`): see the package."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import platform
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from tqdm import tqdm

import tests.gradients.campaign
import userdp
from benchmarks.rows import add_options, add_row, whole_rows
from tests.gradients.campaign.jobs import Job, answered, jobs, quietly, wrong
from tests.gradients.campaign.table import page


def source_digest() -> str:
    """Of the engines: results of others are not taken over."""
    digest = hashlib.sha256()
    for path in sorted(Path(userdp.__file__).parent.joinpath("gradients").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> int:
    assert tests.gradients.campaign.__doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.gradients.campaign",
        description=tests.gradients.campaign.__doc__.splitlines()[0],
    )
    parser.add_argument("--kinds", nargs="+", help="beginnings of kinds, as in the table")
    parser.add_argument("--names", nargs="+", help="only these families, accidents or numbers")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    parser.add_argument("--table", action="store_true", help="ask nothing; show what is there")
    add_options(parser, results="runs/influence.jsonl", skipped="what these engines were asked")
    options = parser.parse_args()
    source = source_digest()
    wanted = [
        job
        for job in jobs()
        if (options.kinds is None or job.kind.startswith(tuple(options.kinds)))
        and (options.names is None or job.name in options.names)
    ]
    rows = {
        Job(row["kind"], row["engine"], row["name"]): row
        for row in whole_rows(options.results)
        if row["source"] == source
    }
    left = [job for job in wanted if job not in rows and not options.table]
    with ProcessPoolExecutor(
        options.workers, multiprocessing.get_context("spawn"), initializer=quietly
    ) as pool:
        coming = [pool.submit(answered, job) for job in left]
        for future in tqdm(as_completed(coming), total=len(left), mininterval=5):
            row = future.result() | {"source": source}
            add_row(options.results, row)
            rows[Job(row["kind"], row["engine"], row["name"])] = row
            if wrong(row):
                tqdm.write(f"WRONG {row}", file=sys.stderr)
    asked = [rows[job] for job in wanted if job in rows]
    text = page(asked, bad=[row for row in asked if wrong(row)], facts=_facts(asked))
    if options.page is not None:
        options.page.write_text(text)
    print(text)
    return int(any(map(wrong, asked)))


def _facts(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "asked": f"{len(rows):,} of {len(jobs()):,}",
        "machine": f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "minutes": f"{sum(row['seconds'] for row in rows) / 60:.0f}",
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }


if __name__ == "__main__":
    sys.exit(main())
