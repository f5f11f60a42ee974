"""Ledgers that tests share: a run's with so many attempts, and a store's that is begun anew."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from userdp.claims.lineage import Lineage
from userdp.core.codec import text_of
from userdp.ledger import History, RunLedger, StoreLedger, permitted_lines
from userdp.ledger.charged_parts import Choice, Query, of_run
from userdp.ledger.lines import (
    Begin,
    BeginTuning,
    Charge,
    Finish,
    Line,
    Release,
    Settle,
)
from userdp.noise.gaussian import NoiseSampler
from userdp.plans import Plan, PrivateSelection, StepRecord


def unwritten(
    *kinds: type[Line], then: Callable[..., bool] = lambda history, line: False
) -> Callable[[History, Line], bool]:
    """In place of `is_new`: lines of these kinds are not written, or ``then`` happens."""
    usual = permitted_lines.is_new
    return lambda history, line: (then if isinstance(line, kinds) else usual)(history, line)


def begun(path: Path, plan: Plan | None, *, run_id: str = "r", **options: Any) -> RunLedger:
    """A new run's ledger at ``path``, that descends from nothing but itself."""
    values: dict[str, Any] = {"lineage": Lineage().plain, **options}
    return RunLedger.create(path, Begin(run_id=run_id, plan=plan, **{"facts": {}, **values}))


def run_with(
    folder: Path,
    plan: Plan | None,
    attempts: int,
    *,
    finished: bool = False,
    noise_sampler: NoiseSampler = NoiseSampler.HOST,
    **options: Any,
) -> Path:
    """A run's folder that holds a ledger with so many attempts, and nothing else."""
    folder.mkdir(parents=True)
    ledger = begun(folder / "ledger.jsonl", plan, **{"run_id": folder.name, **options})
    for _ in range(attempts):
        assert plan is not None
        ledger.attempt(StepRecord.of_plan(plan, noise_sampler=noise_sampler))
    if finished:
        finish(ledger)
    ledger.close()
    return folder


def finish(ledger: RunLedger, **facts: Any) -> None:
    """End a run as planned."""
    ledger.append(Finish(attempts=ledger.attempts, **facts))


def entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger as plain values, without the chain."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{name: one[name] for name in one if name != "prev"} for one in lines]


def forget(store: Path) -> None:
    """Make a store as it was before anything was charged, for fixtures that many tests share."""
    for name in ("ledger.jsonl", "ledger.json"):
        (store / name).unlink(missing_ok=True)
    shutil.rmtree(store / "runs", ignore_errors=True)


def reserve(ledger: StoreLedger, run_id: str, plan: Plan | None, **facts: Any) -> History:
    """Charge a run's whole plan; it keeps a log, unless the facts say otherwise."""
    return ledger.append(Charge(pays_for=of_run(run_id, plan), **{"logged": True, **facts}))


def query(ledger: StoreLedger, query_id: str, name: str, pure_epsilon: float) -> History:
    """Charge a statistic."""
    return ledger.append(Charge(pays_for=Query(id=query_id, name=name, pure_epsilon=pure_epsilon)))


def select(
    ledger: StoreLedger,
    run_id: str,
    selection: PrivateSelection,
    *,
    constants: tuple[str, ...] = (),
    slots: Mapping[str, str] | None = None,
    state: str = "",
) -> History:
    """Charge a private selection, which draws these slots if it has drawn none."""
    return ledger.append(
        BeginTuning(run_id=run_id, constants=constants, slots=slots or {}),
        Charge(pays_for=Choice(id=run_id, tuning=selection), state=state, logged=True),
    )


def settle(
    ledger: StoreLedger,
    run_id: str,
    *,
    weights: str | None = None,
    lineage: Any = None,
    **facts: Any,
) -> History:
    """Settle a run, with what it released, if it did."""
    ended = Settle(run_id=run_id, **facts)
    if weights is None:
        return ledger.append(ended)
    return ledger.append(ended, Release(run_id=run_id, weights=weights, lineage=lineage or {}))


def the_first(store: Path) -> None:
    """Make the ledger of a copied store one that was begun there, which no claim speaks of."""
    path, note = store / "ledger.jsonl", store / "ledger.json"
    head, lines = "0" * 16, []
    for line in map(json.loads, path.read_text("utf-8").splitlines()):
        if "inode" in line:
            line["inode"] = path.stat().st_ino
        lines.append(text_of({**line, "prev": head}))
        head = hashlib.sha256(lines[-1].encode()).hexdigest()[:16]
    path.write_text("\n".join([*lines, ""]), "utf-8")
    note.write_text(json.dumps({**json.loads(note.read_text("utf-8")), "head": head}), "utf-8")
