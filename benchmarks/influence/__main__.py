"""``python -m benchmarks.influence``; see the package."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers.utils import logging as transformers_logging

from benchmarks.influence.cases import KINDS, case
from benchmarks.influence.measure import influence
from benchmarks.influence.table import page
from benchmarks.rows import add_options, add_row, whole_rows
from userdp.gradients import ENGINES, Engine
from userdp.gradients.engines import sharded
from userdp.gradients.shards import shard

ROWS = ("ragged", "equal")
ALL: dict[str, Engine] = {**ENGINES, "sharded": sharded.clipped_sum}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.influence")
    parser.add_argument("--cases", type=int, default=300, help="of each kind, for each engine")
    parser.add_argument("--engines", nargs="+", choices=list(ALL), default=list(ALL))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    add_options(parser, results="docs/results/influence.jsonl", skipped="what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    rows = list(whole_rows(options.results))
    done = {_key(row) for row in rows}
    for engine in options.engines:
        wrap = _joined() if engine == "sharded" else _unchanged
        for kind in options.kinds:
            for number in range(options.cases):
                row = {
                    "engine": engine,
                    "kind": kind,
                    "rows": ROWS[number % 2],
                    "case_number": number,
                }
                if _key(row) in done:
                    continue
                begin = time.process_time()
                row |= influence(ALL[engine], case(kind, row["rows"], number, wrap=wrap))
                row["seconds"] = round(time.process_time() - begin, 4)
                rows.append(row)
                add_row(options.results, row)
    text = page(rows, date=datetime.now(UTC).date().isoformat(), cores=os.cpu_count() or 1)
    if options.page is not None:
        options.page.write_text(text)
    print(text)
    return int(any(row.get("ratio", 0.0) > 1 for row in rows))


def _key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["engine"], row["kind"], row["case_number"]


def _unchanged(model: nn.Module) -> nn.Module:
    return model


def _joined() -> Callable[[nn.Module], nn.Module]:
    """Models of the sharded engine are sharded, over one process here."""
    if not dist.is_initialized():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return shard


if __name__ == "__main__":
    sys.exit(main())
