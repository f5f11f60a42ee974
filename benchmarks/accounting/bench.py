"""Measurements that are asked for once, remembered, and kept to a deadline."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.accounting.libraries import Row
from benchmarks.accounting.settings import Setting
from benchmarks.accounting.worker import Worker


class Journal:
    """Measurements by name, appended to a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Row] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if not (row["name"].startswith("ours") and "error" in row):  # tried again
                    self.known[row.pop("name")] = row

    def add(self, name: str, row: Row) -> Row:
        self.known[name] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps({"name": name, **row}) + "\n")
        return row


class Bench:
    """Asks the workers, remembers the answers, keeps to a deadline."""

    def __init__(self, journal: Journal, deadline: float) -> None:
        self.journal, self.deadline, self.skipped = journal, deadline, 0
        self.ours = Worker("ours")

    def measure(self, library: str, setting: Setting, task: str, cap: int, **extra: Any) -> Row:
        name = f"{library} {task} {setting.key} {json.dumps(extra)}"
        if name in self.journal.known:
            return self.journal.known[name]
        left = self.deadline - time.monotonic()
        if left < 1:
            self.skipped += 1
            return {"skipped": True}
        cap = min(cap, int(left)) if math.isfinite(left) else cap
        request = {"task": task, "setting": asdict(setting), "cap": cap, **extra}
        print(f"{name} ...", file=sys.stderr, flush=True)
        if library == "ours":
            row = self.ours.ask(request, cap)
            row["peak_mb_over_import"] = max(row.pop("peak_mb", 0.0) - self.ours.ready_mb, 0.0)
        else:
            worker = Worker(library)
            row = worker.ask(request, cap)
            worker.close()
        if row.get("capped") and math.isfinite(left):
            self.skipped += 1
            return row  # capped by the deadline: not worth remembering
        return self.journal.add(name, row)
