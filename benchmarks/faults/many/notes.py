"""What each process writes down of its charges, before and after, where no kill can undo it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from userdp.errors import UseError
from userdp.ledger.store_journal import StoreJournal


class Notes:
    """A file of one process and its children; each line is one call of the system.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, kind: str, **values: Any) -> None:
        """Append a line, with the moment: the clock is the same in all processes of a machine."""
        line = {"kind": kind, "at": time.monotonic(), **values}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def watch(self, *, meet: float | None = None) -> None:
        """From now on every charge in a store's ledger is noted, before it is asked for and after.

        Called in the process of a command, before the command.

        Args:
            meet: charges wait for the next multiple of so many seconds, so that those of several
                processes are asked for at the same moment; None where none waits.
        """
        charge = StoreJournal.charge

        def noted(ledger: StoreJournal, entry: dict[str, Any], *, taken: str) -> None:
            what = {"ledger": str(ledger.path), "id": entry["run_id"], "what": entry["kind"]}
            if meet is not None:
                time.sleep(meet - time.monotonic() % meet)
            self.tell("begun", **what)
            try:
                charge(ledger, entry, taken=taken)
            except UseError:
                self.tell("refused", **what)
                raise
            self.tell("charged", **what)

        StoreJournal.charge = noted


def read_notes(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of all files of a folder, oldest first."""
    found = []
    for path in folder.glob("*.jsonl"):
        data = path.read_bytes()
        found += [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
    return sorted(found, key=lambda note: note["at"])
