"""What the lines of ledgers hold: each kind's fields, and the type of each.

Every ledger is read through `require_shapes`, so that whoever takes a field out of a line finds it
there, of its type. What the values mean is for their readers to judge (`userdp.ledger.history`,
`userdp.ledger.run`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from userdp.codec import decode
from userdp.errors import UseError

RUN_SCHEMA, STORE_SCHEMA = "userdp.ledger/4", "userdp.store-ledger/4"

_Object = Mapping[str, Any]
_MAYBE = "?"
"""Ends the name of a field that may be left out."""

RUN: Mapping[str, Mapping[str, Any]] = {
    "run": {
        "schema": str, "run_id": str, "plan": _Object | None, "facts": _Object, "lineage": _Object,
        "trial?": bool, "sweep?": str, "payer?": _Object, "tuning?": _Object,
    },
    "open": {"nonce": str, "charge": str},
    "lost": {"attempts": int},
    "copied": {},
    "attempt": {"attempt": int, "l2_clip_norm": float, "noise_sampler?": str},
    "finish": {
        "attempts": int, "digests": Mapping[str, str | None], "files?": Mapping[str, str],
        "looks?": tuple[str, ...], "since?": _Object,
    },
    "halt": {"attempts": int},
    "chosen": {"runs": int, "looks": tuple[str, ...]},
    "release": {"split": str, "epsilon": float, "query_ids?": tuple[str, ...]},
}  # fmt: skip
"""Of a run's ledger, by kind."""
STORE: Mapping[str, Mapping[str, Any]] = {
    "store": {"schema": str, "id?": str},
    "reserve": {
        "run_id": str, "plan": _Object | None, "again": str | None, "base": _Object | None,
        "constants": str, "when?": str | None, "state?": str, "logged?": bool, "steered?": bool,
    },
    "open": {"run_id": str, "attempts": int, "nonce": str},
    "settle": {"run_id": str, "steps": int, "weights?": str, "lineage?": _Object},
    "release": {"run_id": str, "weights": str, "lineage": _Object},
    "selection": {"run_id": str, "selection": _Object, "when?": str | None, "state?": str},
    "slots": {"run_id": str, "slots": Mapping[str, str]},
    "trial": {"run_id": str, "slot": str, "base": _Object},
    "score": {"run_id": str, "value": float | None},
    "query": {
        "run_id": str, "name": str, "pure_epsilon": float, "base": _Object | None,
        "when?": str | None, "state?": str,
    },
    "answer": {"run_id": str, "value": int},
    "look": {"what": str},
    "forget": {"before": str, "after": str},
    "declare": {"constants": str},
    "sweep": {"run_id": str, "constants": tuple[str, ...]},
    "total": {"epsilon": float, "delta": float},
    "budget": {"run_id": str, "filter": _Object, "when?": str | None},
    "series": {"run_id": str, "series": _Object, "when?": str | None},
    "halt": {"run_id": str, "attempts": int, "when?": str | None},
    "place": {},
}  # fmt: skip
"""Of a store's ledger, by kind."""
_COUNTS = ("attempt", "attempts", "steps", "runs")
"""Fields that are never below 0: what counts less would make a claim smaller."""


def require_shapes(path: Path, entries: Sequence[dict[str, Any]], *, known: int = 0) -> None:
    """`UseError` unless every line of a ledger is of a kind of it, with the fields of that kind.

    Args:
        path: of the ledger.
        entries: of a run's or a store's, as the first of them says. A journal of anything else, or
            of another schema, is refused by its readers, who know what they expect.
        known: so many of the first lines were asked before.
    """
    if not entries:
        return
    first = (str(entries[0].get("kind")), str(entries[0].get("schema")))
    shapes = {("run", RUN_SCHEMA): RUN, ("store", STORE_SCHEMA): STORE}.get(first)
    if shapes is None:
        return
    for number, entry in enumerate(entries[known:], start=known + 1):
        shape = shapes.get(_kind(path, number, entry))
        if shape is None:
            raise UseError(f"line {number} of {path} is of the unknown kind {entry['kind']!r:.80}")
        for field, hint in shape.items():
            name = field.removesuffix(_MAYBE)
            if name in entry:
                decode(hint, entry[name], what=f"{name} in line {number} of {path}")
                if name in _COUNTS and entry[name] < 0:
                    raise UseError(f"line {number} of {path} says {name} {entry[name]}, below 0")
            elif name == field:
                raise UseError(f"line {number} of {path} ({entry['kind']}) lacks {name}")


def _kind(path: Path, number: int, entry: dict[str, Any]) -> str:
    kind = entry.get("kind")
    if not isinstance(kind, str):
        raise UseError(f"line {number} of {path} does not say of which kind it is")
    return kind
