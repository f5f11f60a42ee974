"""``python -m benchmarks.faults.hostile``; see the package."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes import children
from benchmarks.faults.hostile.child import CURRENT, DEATH, REPORT, at_random, keep
from benchmarks.faults.hostile.table import section, summary, table
from benchmarks.faults.hostile.targets import targets
from benchmarks.faults.planted import digest_of_source
from benchmarks.faults.table import write_section
from benchmarks.rows import add_options, add_row, whole_rows

_SLICE = 90.0
"""Seconds of one process. What it had found to lead on is kept for the next one."""
_PATIENCE = 3600.0
"""Seconds after its end by which a process counts as one that never ends; it is limited in the time
that it computes, and waits for nobody but the machine."""
_FORGETFUL = Path("/dev/shm")
"""A disk in memory, where there is one: syncs cost nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.hostile")
    parser.add_argument("--hours", type=float, default=2.0, help="until so many were tried in all")
    parser.add_argument("--only", nargs="+", choices=targets(), help="these targets and no others")
    parser.add_argument("--slice", type=float, default=_SLICE, help="seconds of one process")
    parser.add_argument("--work", type=Path, default=Path("runs/hostile"), help="is kept")
    parser.add_argument("--plain", action="store_true", help="at random, without atheris")
    add_options(parser, results="runs/hostile.jsonl", skipped="hours that were tried already")
    options = parser.parse_args()
    led = not options.plain and importlib.util.find_spec("atheris") is not None
    rows = list(whole_rows(options.results))
    names = options.only or list(targets())
    if sum(row["seconds"] for row in rows) < options.hours * 3600:
        children.warm()  # a fork of this process need not load all of it again
    while sum(row["seconds"] for row in rows) < options.hours * 3600:
        spent = Counter[str]()
        for row in rows:
            spent[row["target"]] += row["seconds"]
        name = min(names, key=lambda one: spent[one])
        # Half of the processes change what is sound, by its structure; what is led by coverage
        # moves away from it, a little with each case that reached something new.
        turn = sum(row["target"] == name for row in rows)
        row = _tried(name, options, seed=len(rows), plain=not led or turn % 2 == 1)
        rows.append(row)
        add_row(options.results, row)
        told = {key: row[key] for key in ("right", "refused", "finding")}
        print(f"{name}: {told}", *row["findings"], sep="\n    ", file=sys.stderr, flush=True)
    source = digest_of_source()[:16]
    if options.page is not None:
        date, cores = datetime.now(UTC).date().isoformat(), os.cpu_count() or 1
        write_section(options.page, section(rows, date=date, cores=cores, source=source))
    print(table(rows))
    print(summary(rows))
    return int(any(row["findings"] for row in rows if row["source"] == source))


def _tried(name: str, options: argparse.Namespace, *, seed: int, plain: bool) -> dict[str, Any]:
    """The row of one process; one that a case killed has that case among its findings."""
    folder = options.work.resolve() / name
    folder.mkdir(parents=True, exist_ok=True)
    for left in (REPORT, CURRENT, DEATH):
        (folder / left).unlink(missing_ok=True)
    source = digest_of_source()[:16]
    within = _FORGETFUL if _FORGETFUL.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="userdp-hostile-", dir=within) as scratch:
        (folder / "said").write_bytes(b"")

        def work() -> int:
            place = Path(scratch)
            if plain:
                return at_random(
                    name, folder=folder, scratch=place, seconds=options.slice, seed=seed
                )
            command = [
                sys.executable, "-m", "benchmarks.faults.hostile.child", name,
                "--folder", str(folder), "--scratch", scratch,
                "--seconds", str(options.slice), "--seed", str(seed),
            ]  # fmt: skip
            os.execv(sys.executable, command)

        patience = options.slice + _PATIENCE
        status = children.run(work, log=folder / "said", patience=patience).status
    counted: dict[str, Any] = {
        "seconds": 0.0,
        "computed": 0.0,
        "right": 0,
        "refused": 0,
        "finding": 0,
    }
    counted["findings"] = {}
    if (folder / REPORT).exists():
        counted = json.loads((folder / REPORT).read_bytes())
    if status != 0:
        counted["findings"][
            f"died ({'no end' if status is None else status}) in {_where(folder)}"
        ] = _last(folder)
        counted["finding"] += 1
    engine = "random" if plain else "atheris"
    return {"target": name, "source": source, "engine": engine, "seed": seed, **counted}


def _where(folder: Path) -> str:
    """The innermost function of the library when a process died."""
    lines = (folder / DEATH).read_text() if (folder / DEATH).exists() else ""
    frames = [line for line in lines.splitlines() if "/userdp/" in line]
    if not frames:
        return "nowhere"
    place, _, function = frames[0].rpartition(" in ")
    return f"{place.rpartition('/userdp/')[2].partition(chr(34))[0]}:{function}"


def _last(folder: Path) -> dict[str, Any]:
    """The case that ran when a process died."""
    data = (folder / CURRENT).read_bytes() if (folder / CURRENT).exists() else b""
    said = (folder / "said").read_bytes()[-300:].decode(errors="replace")
    return {"why": said, "times": 1, "file": None, "case": keep(folder, data)}


if __name__ == "__main__":
    sys.exit(main())
