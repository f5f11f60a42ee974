"""Ledgers of runs and of stores, and what lies beside them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.prices import remember_prices

CORPUS = Path(__file__).parents[4] / "tests" / "formats" / "corpus"
"""What every version reads: a store, its ledger, runs, plans and models."""


class Chain(Target):
    """The bytes of a ledger: no line but the last can be changed unnoticed."""

    name = "ledger-bytes"
    what = "a ledger, any bytes changed: its chain"

    def make(self, folder: Path) -> None:
        shutil.copyfile(CORPUS / "winner" / "ledger.jsonl", folder / "ledger.jsonl")

    def read(self, folder: Path) -> None:
        from userdp.ledger.journal import read_entries

        entries = read_entries(folder / "ledger.jsonl")
        known = read_entries(CORPUS / "winner" / "ledger.jsonl")
        assert entries[:-1] == known[: len(entries[:-1])], "an edited line was read"
        assert len(entries) <= len(known) + 1, "lines were put in"


class Run(Target):
    """A run's folder without its model; the chain of the ledger fits what was changed."""

    name = "run"
    what = "a run: ledger (chained anew), plan, options"
    of: ClassVar[str] = "run"

    def make(self, folder: Path) -> None:
        remember_prices()
        for name in ("ledger.jsonl", "plan.json", "train.toml"):
            shutil.copyfile(CORPUS / self.of / name, folder / name)

    def mend(self, folder: Path, file: str) -> None:
        if file == "ledger.jsonl":
            chain(folder / file)

    def read(self, folder: Path) -> None:
        read_run_folder(folder)


class Winner(Run):
    """The run that a private selection chose, with a lineage of its own."""

    name = "winner"
    what = "the winner of a sweep: ledger (chained anew), plan, options"
    of = "winner"


class StoreLines(Target):
    """A store whose ledger is chained anew."""

    name = "store-ledger"
    what = "a store's ledger (chained anew), the note beside it, counters of attempts"
    follows_paths: ClassVar[bool] = True  # ledger.json names the ledger that stores share

    def make(self, folder: Path) -> None:
        remember_prices()
        shutil.copytree(CORPUS / "store", folder, dirs_exist_ok=True)

    def files(self, folder: Path) -> list[str]:
        runs = sorted((folder / "runs").iterdir())[:2]
        return ["ledger.jsonl", "ledger.json", *(f"runs/{path.name}" for path in runs)]

    def mend(self, folder: Path, file: str) -> None:
        ledger = folder / "ledger.jsonl"
        if file == ledger.name:
            chain(ledger)
        if file != "ledger.json":
            note(folder)

    def read(self, folder: Path) -> None:
        read_store_ledger(folder)


TARGETS: tuple[type[Target], ...] = (Chain, Run, Winner, StoreLines)


def chain(path: Path) -> None:
    """Let each line follow from the one before it, as far as lines are objects."""
    previous, lines = "0" * 16, []
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        with contextlib.suppress(ValueError, RecursionError):
            line = with_prev(line, previous)
        lines.append(line)
        previous = hashlib.sha256(line).hexdigest()[:16]
    path.write_bytes(b"\n".join([*lines, b""]))


def with_prev(line: bytes, previous: str) -> bytes:
    """A line that names the hash of the one before; all else in it stays as it is written."""
    values = json.loads(line)
    if not isinstance(values, dict):
        return line
    if isinstance(old := values.get("prev"), str):
        return line.replace(json.dumps(old).encode(), json.dumps(previous).encode())
    return line.rstrip().removesuffix(b"}") + f',"prev":"{previous}"}}'.encode()


def note(store: Path) -> None:
    """Let the note beside a ledger be one of it, as a reader of another version might leave it."""
    data = (store / "ledger.jsonl").read_bytes()
    place = store / "ledger.json"
    try:
        kept: dict[str, Any] = json.loads(place.read_bytes())
    except ValueError:
        return
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    head = hashlib.sha256(lines[-1]).hexdigest() if lines else None
    inode = (store / "ledger.jsonl").stat().st_ino
    size = data.rfind(b"\n") + 1
    place.write_text(
        json.dumps({**kept, "inode": inode, "bytes": size, "head": head, "changed": None})
    )


def read_run_folder(folder: Path) -> None:
    """Claim, verify and report a run, as ``userdp verify`` and ``userdp report`` do."""
    from userdp.claims import claim
    from userdp.claims.verify import verify_run
    from userdp.ledger.folder import RunFolder
    from userdp.plans import Plan
    from userdp.reporting.run_facts import read_run

    claimed = claim(folder)
    sound_claim(claimed)
    verify_run(folder)
    read_run(folder)
    place = RunFolder(folder)
    place.read_train()
    if place.plan.exists():
        Plan.load(place.plan)


def read_store_ledger(folder: Path) -> None:
    """Claim a store, and tell what of its budget is spent, as ``userdp store budget`` does."""
    from userdp.claims import claim
    from userdp.ledger import StoreLedger
    from userdp.ledger.overview import overview

    overview(StoreLedger(folder).history())
    sound_claim(claim(folder))


def sound_claim(claimed: Any) -> None:
    """Whether a claim can be one: ε is no NaN and not below 0, and it can be told."""
    guarantee = claimed.guarantee
    assert guarantee.epsilon >= 0, f"epsilon {guarantee.epsilon}"
    assert 0 <= guarantee.delta <= 1, f"delta {guarantee.delta}"
    assert claimed.headline, "it has no headline"
    json.dumps(claimed.to_dict(), allow_nan=True)
