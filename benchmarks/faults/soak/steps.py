"""20,000 tiny steps in one process: do time and memory of a step stay what they were?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.soak.measured import cost_of, cost_of_process, cpu_and_memory
from benchmarks.faults.soak.people import prepare_few
from benchmarks.faults.soak.tiny import options

STAGES = (20_000,)
_EVERY = 500


def rows(folder: Path, stage: int) -> Iterator[dict[str, Any]]:
    """One row of the run, with a sample every 500 steps; then one a command on what it left."""
    store, run = prepare_few(folder), folder / "run"
    for left in (run, folder / "export"):
        shutil.rmtree(left, ignore_errors=True)
    watched = _Watched(run / "ledger.jsonl")
    cost = cost_of_process(
        [
            *(sys.executable, "-m", "userdp", "train", str(store), "--out", str(run)),
            *(*options(steps=stage), "--checkpoint-every", "2000"),
        ],
        watch=watched,
    )
    yield {"what": "train", **asdict(cost), "samples": watched.samples}
    for what, arguments in (
        ("account --ledger RUN", ("account", "--ledger", run)),
        ("verify RUN", ("verify", run)),
        ("verify STORE", ("verify", store)),
        ("report RUN", ("report", run, "--out", folder / "report.html", "--overwrite")),
        ("export RUN", ("export", run, "--out", folder / "export")),
    ):
        yield {"what": what, **asdict(cost_of(*arguments))}


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
