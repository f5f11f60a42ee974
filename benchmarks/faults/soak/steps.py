"""20,000 tiny steps in one process: do time and memory of a step stay what they were?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes.scenes.base import MODEL, PLAN
from benchmarks.faults.soak.measured import cost_of, cost_of_process, cpu_and_memory
from benchmarks.faults.soak.people import prepare_few

STEPS = 20_000
_EVERY = 500


def rows(folder: Path) -> Iterator[dict[str, Any]]:
    """One row of the run, with a sample every 500 steps; then one a command on what it left."""
    store, run = prepare_few(folder), folder / "run"
    for left in (run, folder / "export"):
        shutil.rmtree(left, ignore_errors=True)
    plan = dict(zip(PLAN[::2], PLAN[1::2], strict=True)) | {
        "--cohort-size": "1", "--noise-multiplier": "4", "--steps": str(STEPS),
    }  # fmt: skip
    watched = _Watched(run / "ledger.jsonl")
    cost = cost_of_process(
        [
            *(sys.executable, "-m", "userdp", "train", str(store), "--out", str(run)),
            *(word for pair in plan.items() for word in pair),
            *(*MODEL, "--checkpoint-every", "2000"),
        ],
        watch=watched,
    )
    yield {
        "number": STEPS, "what": "train", "cpu": cost.cpu, "seconds": cost.seconds,
        "peak": cost.peak, "samples": watched.samples,
    }  # fmt: skip
    for what, arguments in (
        ("account --ledger RUN", ("account", "--ledger", run)),
        ("verify RUN", ("verify", run)),
        ("verify STORE", ("verify", store)),
        ("report RUN", ("report", run, "--out", folder / "report.html", "--overwrite")),
        ("export RUN", ("export", run, "--out", folder / "export")),
    ):
        cost = cost_of(*arguments)
        yield {
            "number": STEPS, "what": what, "cpu": cost.cpu, "seconds": cost.seconds,
            "peak": cost.peak,
        }  # fmt: skip


class _Watched:
    """Notes processor time and memory of the process each time some steps more are charged.

    Attributes:
        samples: steps charged, processor seconds so far, MB of memory.
    """

    def __init__(self, ledger: Path) -> None:
        self.samples: list[tuple[int, float, float]] = []
        self._ledger, self._read, self._steps = ledger, 0, 0

    def __call__(self, pid: int) -> None:
        if not self._ledger.exists():
            return
        with self._ledger.open("rb") as file:
            file.seek(self._read)
            more = file.read()
        self._read += len(more)
        self._steps += more.count(b'"kind":"attempt"')
        last = self.samples[-1][0] if self.samples else -_EVERY
        if self._steps and self._steps >= last + _EVERY:
            cpu, memory = cpu_and_memory(pid)
            self.samples.append((self._steps, round(cpu, 2), round(memory, 1)))
