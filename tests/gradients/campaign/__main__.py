"""``python -m tests.gradients.campaign`` (`make influence`): see the package."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tqdm import tqdm

import tests.gradients.campaign
from tests.gradients.campaign.jobs import answered, jobs, quietly, wrong
from tests.gradients.campaign.table import BEGINNING, results


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


if __name__ == "__main__":
    sys.exit(main())
