"""``python -m benchmarks.families``; see the package."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import warnings
from datetime import UTC, datetime
from typing import Any

import peft
import torch
import transformers
from transformers.utils import logging as transformers_logging

from benchmarks.families.measure import measured, priced
from benchmarks.families.models import FAMILIES, families
from benchmarks.families.table import page
from benchmarks.rows import add_options, add_row, whole_rows

_TIMED = families(width=128, vocabulary=2000, positions=128)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--no-price", action="store_true", help="leave the times out")
    add_options(parser, results="docs/results/families.jsonl", skipped="what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity(logging.CRITICAL)  # it logs whole configurations
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = list(whole_rows(options.results))
    done = {(row["family"], row["mode"]) for row in rows}
    for name in options.families:
        for mode in ("full", "LoRA"):
            if (name, mode) in done:
                continue
            adapters = mode == "LoRA"
            row: dict[str, Any] = {"family": name, "mode": mode, "kind": FAMILIES[name].kind}
            row |= measured(FAMILIES[name], adapters=adapters)
            if not options.no_price and "engines" in row:
                row["price"] = priced(_TIMED[name], adapters=adapters)
            rows.append(row)
            add_row(options.results, row)
            print(f"{name}, {mode}: {row.get('auto', 'refused')}", file=sys.stderr, flush=True)
    order = {name: number for number, name in enumerate(FAMILIES)}
    rows.sort(key=lambda row: order.get(row["family"], len(order)))
    text = page(rows, facts=_facts())
    if options.page is not None:
        options.page.write_text(text)
    print(text)
    return int(any(_wrong(row) for row in rows))


def _wrong(row: dict[str, Any]) -> bool:
    """Whether some engine's sum is not the reference's, or a user moved one by more than C."""
    answered = [one for one in row.get("engines", {}).values() if "error" in one]
    return any(one["error"] > 1e-3 or one["moves"] > 1 for one in answered)


def _facts() -> dict[str, str]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPU cores ({platform.machine()}), one thread",
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"peft {peft.__version__}",
    }


if __name__ == "__main__":
    sys.exit(main())
