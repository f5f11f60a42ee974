"""The store that all processes share, and the purses: small stores whose total is soon spent."""

from __future__ import annotations

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes.scenes.base import must, prepare, train, userdp, write_people

USERS = 200
ASKED = 0.25
"""ε of every answer."""
ADDED_UP, FILTERED, DELTA = 0.5, 1.0, 1e-6
"""ε of purses of each kind, which hold two answers, and δ: so few are soon asked for at once."""


class World:
    """Places under one folder, by names that all processes know.

    Args:
        folder: for all of it.
        purses: how many there are.
    """

    def __init__(self, folder: Path, *, purses: int) -> None:
        self.folder, self.purses = folder, purses
        self.store, self.notes, self.plan = folder / "store", folder / "notes", folder / "plan.json"

    def purse(self, number: int) -> Path:
        """A store with a total: added up in those with an even number, by a filter in others."""
        return self.folder / f"purse-{number}"

    @property
    def runs(self) -> list[Path]:
        """The folders of runs whose ledger was begun."""
        return sorted(path.parent for path in self.folder.glob("run-*/ledger.jsonl"))

    @property
    def price(self) -> float:
        """ε of every run: all have one plan."""
        return float((self.folder / "price").read_text("utf-8"))

    def make(self) -> None:
        """Prepare all of it; in a process of its own."""
        from userdp.ledger import StoreLedger

        self.notes.mkdir()
        must(prepare(self.folder, users=USERS))
        for number in range(self.purses):
            purse = shutil.copytree(self.store, self.purse(number))
            if number % 2:
                must(userdp("budget", purse, "--epsilon", FILTERED, "--delta", DELTA))
            else:
                StoreLedger(purse).declare_total(ADDED_UP, DELTA)
        scratch = self.folder / "scratch"
        shutil.copytree(self.store, scratch / "store")
        must(train(scratch))
        status, claim = said("account", "--ledger", scratch / "run")
        must(status)
        (self.folder / "price").write_text(str(claim["epsilon"]), "utf-8")
        (scratch / "run" / "plan.json").rename(self.plan)
        shutil.rmtree(scratch)

    def write_more(self, number: int) -> Path:
        """Records to append, of three new people."""
        path = self.folder / "more.jsonl"
        write_people(path, users=3, seed=number, prefix=f"more{number}-")
        return path


def said(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Run ``userdp ARGUMENTS --json`` here; its exit status and the object that it printed."""
    text = StringIO()
    with redirect_stdout(text):
        status = userdp(*arguments, "--json")
    printed = text.getvalue()
    if status != 0:  # whoever called it, and its log, are told
        print(printed)
    return status, json.loads(printed) if printed.startswith("{") else {}
