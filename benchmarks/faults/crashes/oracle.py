"""What must hold of ledgers and of what was released, whatever a process was killed in.

It reads files as JSON and bytes, and the witness's lines; of `userdp` it imports nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_START = "0" * 16
_LEFT = (".partial-", ".store.partial-", ".store.old-", "work-")


def torn_allowed(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The whole lines of a ledger, and what is wrong with them; a cut last line is no wrong."""
    data = path.read_bytes()
    previous, lines, problems = _START, list[dict[str, Any]](), list[str]()
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            values = json.loads(line)
            if values["prev"] != previous:
                problems.append(f"line {number} of {path} does not follow from the one before")
        except (ValueError, KeyError, TypeError):
            problems.append(f"line {number} of {path} is none")
            break
        previous = hashlib.sha256(line).hexdigest()[:16]
        lines.append(values)
    return lines, problems


class Ledgers:
    """The ledgers under a folder, looked at after each life.

    Args:
        folder: of the case.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, list[dict[str, Any]]] = {}

    def problems(self) -> list[str]:
        """What is wrong now; what was acknowledged in an earlier look must still be there."""
        found = []
        for path in sorted(self._folder.rglob("ledger.jsonl")):
            if any(part.startswith(_LEFT) for part in path.relative_to(self._folder).parts):
                continue
            lines, odd = torn_allowed(path)
            found += odd
            before = self._seen.get(path, [])
            if lines[: len(before)] != before:
                found.append(f"{path} has lost lines that it held before")
            self._seen[path] = lines
            if lines and lines[0]["kind"] == "run":
                found += self._of_run(path, lines)
        gone = [path for path in self._seen if not path.exists()]
        return found + [f"{path} is gone" for path in gone]

    def _of_run(self, path: Path, lines: list[dict[str, Any]]) -> list[str]:
        """A run's ledger: its plan is charged in the store that it names, and never exceeded."""
        plan, resume = lines[0]["plan"], path.with_name("resume.json")
        attempts = sum(line["kind"] == "attempt" for line in lines)
        attempts += sum(line["attempts"] for line in lines if line["kind"] == "lost")
        found = []
        if plan is not None and attempts > plan["steps"]:
            found.append(f"{path} holds {attempts} attempts of {plan['steps']} planned")
        if plan is None or not resume.exists():
            return found
        kept = json.loads(resume.read_text("utf-8"))
        store = Path(kept["store_path"])
        charges, odd = torn_allowed(store / "ledger.jsonl")
        own = [line for line in charges if line.get("run_id") == lines[0]["run_id"]]
        if not any(line["kind"] == "reserve" and line["plan"] == plan for line in own):
            found.append(f"{path} was begun, and {store} was not charged its plan")
        counter = store / "runs" / str(kept["charge"])
        if attempts and (not counter.exists() or int(counter.read_bytes()) < attempts):
            found.append(f"{counter} knows fewer attempts than {path}")
        return found + odd


def noise_problems(events: Iterable[dict[str, Any]]) -> list[str]:
    """What is wrong with noise, by the lines of all lives of a case.

    A noisy sum is ready to be released from the line on that tells of it: by then its step must be
    in the ledger, on the disk. The same noise over two sums would give away their difference.
    """
    found: list[str] = []
    sums: dict[str, str] = {}
    states: set[str] = set()
    ready: dict[str, set[int]] = {}
    for event in events:
        where = f"step {event['step']} of {event['ledger']}"
        if event["kind"] == "drawn":
            if event["state"] in states:
                found.append(f"{where} drew its cohort from a state that was used before")
            states.add(event["state"])
        elif event["kind"] == "noise":
            steps = ready.setdefault(event["ledger"], set())
            if event["step"] in steps:
                found.append(f"{where} was made ready for release twice")
            steps.add(event["step"])
            if event["lines"] < len(steps) or event["lines"] < event["step"]:
                found.append(f"{where} was ready before its line was in the ledger")
            elif not event["synced"]:
                found.append(f"{where} was ready before its line was on the disk")
            if sums.setdefault(event["noise"], event["sum"]) != event["sum"]:
                found.append(f"{where} has the noise of another sum")
    return found


def left_behind(folder: Path) -> list[str]:
    """Temporary files and folders that are there when all is done."""
    return [
        f"{path.relative_to(folder)} was left behind"
        for path in sorted(folder.rglob("*"))
        if path.name.startswith(_LEFT)
    ]
