"""Whether a run may have been chosen among several: what its people's store knows by now.

A run's claim is of one run. Whoever trains several on the same people and shows the best of them
shows a choice too: by exact numbers no ε covers it, and by what the runs released it costs what all
of them cost together. A run's own ledger cannot know of runs that began after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from userdp.claims.inheritance import run_lineage
from userdp.claims.payers import parts_of
from userdp.errors import UserdpError
from userdp.ledger.folder import RunFolder
from userdp.ledger.history import History
from userdp.ledger.store import StoreLedger

_OF_MODELS = {"audit", "evaluate", "generate --check", "personalize", "predict"}
"""Looks that tell models apart; others tell of text."""


def followed(path: Path, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The line that a run's ledger lacks if it may have been chosen among runs; else none.

    Every claim of a run is computed with it, and an export's ledger ends in it, since whoever has
    that has no store. By exact numbers a run may have been chosen among all runs of its store.
    What they released chose at no price only among those that no part of its claim pays for: a
    budget with a filter and a tuning pay for all of theirs.

    Args:
        path: of the run's ledger, in its folder.
        entries: of the ledger. A trial of a private selection and a run without privacy claim
            nothing, and an export says what it knows.
    """
    folder, header = RunFolder(path.parent), entries[0]
    told = header.get("trial") or any(one["kind"] == "chosen" for one in entries)
    if told or header.get("plan") is None or folder.stores is None:
        return []
    run_id = str(header["run_id"])
    history = _history(folder.stores, run_id)
    if history is None:
        return [{"kind": "chosen", "runs": 0, "looks": []}]
    begun, grid = history.sweeps.get(run_id, (0, ()))  # of a tuning's winner: its trials are one
    ours = {
        one.run_id
        for one in history.charges.values()
        if run_id in (one.run_id, one.again) or (one.at > begun and one.constants in grid)
    }
    runs = [one for one in history.charges.values() if one.plan or one.selection]
    others = [one for one in runs if one.run_id not in ours and one.again not in ours]
    if not others:
        return []
    first = min(one.at for one in runs)
    looks = {what for at, what in history.looks if at > first and what in _OF_MODELS}
    looks |= {"train"} if any(one.shows_losses for one in runs) else set()
    paid = {part.id for part in run_lineage(path, entries).parts}
    if not looks and paid.issuperset(part.id for part in parts_of(history, others)):
        return []
    count = 1 + sum(one.again is None for one in others)
    return [{"kind": "chosen", "runs": count, "looks": sorted(looks)}]


def _history(stores: tuple[Path, ...], run_id: str) -> History | None:
    """The ledger of the first store that knows the run."""
    for store in stores:
        try:
            history = StoreLedger(store).history() if store.is_dir() else History()
        except UserdpError:
            continue
        if run_id in history.ids:
            return history
    return None
