"""What must hold of ledgers and of claims while many processes write them.

It reads the ledgers as JSON, and the notes of those who charged; of `userdp` it imports nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes.oracle import Ledgers, torn_allowed

_ROUNDING = 1e-9
"""Relative; claims are sums of floats, rounded up when they are printed."""


@dataclass(kw_only=True, slots=True)
class Charge:
    """What is known of a charge by those who made it.

    Args:
        price: its ε.
        begun: when it was about to be asked for.
        charged: when it was acknowledged; infinite before that, and where a kill came first.
        refused: whether it was refused.
    """

    price: float
    begun: float
    charged: float = math.inf
    refused: bool = False


class Judge:
    """Holds what was told against what was charged.

    Args:
        folder: of the stores and the runs.
        prices: ε of a charge by what it is (``query``, ``reserve``), each of the one kind in play.

    Attributes:
        held: how many claims were held against bounds.
    """

    def __init__(self, folder: Path, *, prices: Mapping[str, float]) -> None:
        self.held = 0
        self._prices, self._ledgers = prices, Ledgers(folder)
        self._held: set[tuple[str, float]] = set()

    def problems(self, notes: Sequence[Mapping[str, Any]]) -> list[str]:
        """What is wrong now; the ledgers are read after ``notes`` were."""
        charges = self._charges(notes)
        return [
            *self._ledgers.problems(),
            *_missing(charges),
            *(problem for note in notes for problem in self._of_claim(note, charges)),
        ]

    def _charges(self, notes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Charge]]:
        """By ledger and id."""
        found: dict[str, dict[str, Charge]] = defaultdict(dict)
        for note in notes:
            if note["kind"] == "begun":
                price = self._prices[note["what"]]
                found[note["ledger"]][note["id"]] = Charge(price=price, begun=note["at"])
            elif note["kind"] == "charged":
                found[note["ledger"]][note["id"]].charged = note["at"]
            elif note["kind"] == "refused":
                found[note["ledger"]][note["id"]].refused = True
        return found

    def _of_claim(
        self, note: Mapping[str, Any], charges: Mapping[str, Mapping[str, Charge]]
    ) -> list[str]:
        """Whether a claim that somebody read lies between what had to be there and what could."""
        if note["kind"] != "claim" or (note["subject"], note["at"]) in self._held:
            return []
        known, own = charges[note["ledger"]], 0.0
        since, until = note["since"], note["at"]
        if note["run_id"] is not None:
            # A run's model descends from all that was charged before it, and from itself.
            run = known[note["run_id"]]
            since, until, own = run.begun, min(run.charged, note["at"]), run.price
            known = {name: one for name, one in known.items() if name != note["run_id"]}
        least = own + math.fsum(one.price for one in known.values() if one.charged < since)
        most = own + math.fsum(
            one.price for one in known.values() if one.begun < until and not one.refused
        )
        self._held.add((note["subject"], note["at"]))
        self.held += 1
        if least * (1 - _ROUNDING) <= note["epsilon"] <= most * (1 + _ROUNDING):
            return []
        told = f"{note['subject']} was told to claim {note['epsilon']}"
        return [f"{told}, and it must be between {least} and {most}"]


def _missing(charges: Mapping[str, Mapping[str, Charge]]) -> list[str]:
    """Charges that were acknowledged and are not in their ledger, or were refused and are there."""
    found = []
    for ledger, known in charges.items():
        # A charge that is about to be asked for may be the first: then there is no ledger yet.
        lines = torn_allowed(Path(ledger))[0] if Path(ledger).exists() else []
        there = [line["run_id"] for line in lines if line["kind"] in ("reserve", "query")]
        if len(set(there)) < len(there):
            found.append(f"{ledger} holds a charge twice")
        for name, one in known.items():
            if one.charged < math.inf and name not in there:
                found.append(f"{ledger} has lost {name}, which was acknowledged")
            if one.refused and name in there:
                found.append(f"{ledger} holds {name}, which was refused")
    return found


@dataclass(kw_only=True, slots=True)
class Turns:
    """How often a process got its turn.

    Args:
        done: commands that ended well.
        refused: that were refused for a reason that its user is told of in the docs.
        killed: on purpose.
        longest: seconds between two commands that ended well, or since the beginning.
    """

    done: int = 0
    refused: int = 0
    killed: int = 0
    longest: float = 0.0


def turns_of(notes: Sequence[Mapping[str, Any]], *, begin: float, end: float) -> dict[str, Turns]:
    """By the name of the process."""
    found: dict[str, Turns] = {}
    last: dict[str, float] = {}
    for note in notes:
        if note["kind"] != "outcome":
            continue
        turns = found.setdefault(note["who"], Turns())
        if note["outcome"] == "failed":
            continue
        setattr(turns, note["outcome"], getattr(turns, note["outcome"]) + 1)
        if note["outcome"] == "done":
            before = last.get(note["who"], begin)
            turns.longest = max(turns.longest, note["at"] - before)
            last[note["who"]] = note["at"]
    for name, turns in found.items():
        turns.longest = round(max(turns.longest, end - last.get(name, begin)), 1)
    return found
