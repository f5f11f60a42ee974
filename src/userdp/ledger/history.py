"""A store ledger, read: who was charged what, what was looked at, declared, released."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.codec import decode, encode
from userdp.errors import UseError
from userdp.ledger import series, settling
from userdp.ledger.charges import Charge, Declared, Opened, Released
from userdp.ledger.shapes import STORE_SCHEMA
from userdp.plans import Plan, PrivateSelection, Series
from userdp.plans.tuning import tuning_from
from userdp.vocabulary import Guarantee, require_positive

SCHEMA = STORE_SCHEMA


@dataclass(kw_only=True, slots=True)
class History:
    """A store ledger, read.

    Args:
        charges: by id, oldest first.
        nonces: of each opened charge, that of its last opening, and the attempts of before it.
        settled: runs that ended.
        slots: by private selection, the constants of each slot, by its id.
        taken: by slot, the trial that took it.
        looks: what showed its operator an exact number, and at which line.
        declared: constants by their digest, and the first line that records them.
        begun: constants of runs by their digest, and the line of the first run that has them.
        sweeps: the line at which each began, by its id, and the constants of its candidates.
        scores: by trial of a private selection, its score, drawn once.
        bases: of trials of private selections, what the model descends from that each began from.
        released: weights.
        id: random, of the ledger; empty while it has no line.
        erasures: states of stores from which somebody was erased, and the state after it, by id.
        total: (ε, δ) within which all charges stay, if that was fixed before the first of them.
        budget: a total with a filter, if that was opened before the first of them.
        series: that were declared, by id.
        halted: runs that were settled before their end.
        copied: its file was found to be another one than before, or changed by somebody else
            (`userdp.ledger.place`).
        lines: how many there are.
    """

    charges: dict[str, Charge] = field(default_factory=dict)
    nonces: dict[str, tuple[str, int]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    slots: dict[str, dict[str, str]] = field(default_factory=dict)
    taken: dict[str, str] = field(default_factory=dict)
    looks: list[tuple[int, str]] = field(default_factory=list)
    declared: dict[str, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    sweeps: dict[str, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    bases: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    released: list[Released] = field(default_factory=list)
    erasures: list[tuple[str, str]] = field(default_factory=list)
    id: str = ""
    total: tuple[float, float] | None = None
    budget: Opened | None = None
    series: dict[str, Declared] = field(default_factory=dict)
    halted: set[str] = field(default_factory=set)
    copied: bool = False
    lines: int = 0

    @property
    def ids(self) -> frozenset[str]:
        """Of all that was charged here, under whichever id a model's lineage knows it."""
        shared = {*self.series} | ({self.budget.id} if self.budget is not None else set())
        return frozenset({*self.charges, *self.taken.values(), *self.sweeps, *shared})

    @property
    def total_delta(self) -> float:
        """δ of a total that all that is charged claims or stays within; 0 where none was fixed."""
        if self.budget is not None:
            return self.budget.filter.delta
        return self.total[1] if self.total is not None else 0.0

    @property
    def within(self) -> str:
        """The ledger's id if a total was fixed in it, that all its charges stay within."""
        return "" if self.total is None and self.budget is None else self.id

    @property
    def looked(self) -> frozenset[str]:
        """What showed exact numbers: commands, and ``train`` for runs that kept a log of them."""
        return self.looked_before(self.lines)

    def looked_before(self, at: int) -> frozenset[str]:
        """`looked`, of the lines before ``at`` only."""
        looks = {what for place, what in self.looks if place < at}
        earlier = (charge for charge in self.charges.values() if charge.at < at)
        trained = any(one.shows_losses for one in earlier)
        return frozenset(looks | ({"train"} if trained else set()))

    def looked_during(self, charge: Charge) -> frozenset[str]:
        """What showed exact numbers while a loop of somebody's own was open or interrupted.

        They may have chosen how it went on. What goes on at the price of a further charge was open
        since the first one.
        """
        if not charge.steered:
            return frozenset()
        first = self.charges.get(charge.again or "", charge)
        ended = self.lines if charge.ended is None else charge.ended
        looks = {what for at, what in self.looks if first.at < at < ended}
        others = (
            one for one in self.charges.values() if first.run_id not in (one.run_id, one.again)
        )
        logs = (one.at for one in others if one.shows_losses)
        return frozenset(
            looks | ({"train"} if any(first.at < at < ended for at in logs) else set())
        )

    def sweep_of(self, constants: str) -> str | None:
        """The sweep that has these constants in its grid, and has not released a winner yet."""
        ended = {one.run_id for one in self.released}
        grids = ((name, grid) for name, (_, grid) in self.sweeps.items() if name not in ended)
        return next((name for name, grid in grids if constants in grid), None)

    def only_erased_since(self, before: str, now: str) -> bool:
        """Whether a store that was in the state ``before`` and is in ``now`` only lost people."""
        reached = {before}
        for one, other in self.erasures:
            if one in reached:
                reached.add(other)
        return now in reached

    def fixed_at(self, constants: str, begun: int) -> int:
        """The line at which the constants of a run that was charged at ``begun`` were fixed.

        Where several runs were declared, which of them is trained could be chosen by a look: so
        each counts as declared once, and in its turn, before any that was declared later.
        """
        declared = self.declared.get(constants, begun)
        again = self.begun.get(constants, begun) < begun
        turn = [
            line
            for one, line in self.declared.items()
            if line < begun and not self.begun.get(one, begun) < begun
        ]
        return declared if declared < begun and not again and min(turn) == declared else begun


def history_of(path: Path, entries: list[dict[str, Any]]) -> History:
    """A store ledger's entries, read; `UseError` if they are no store ledger's.

    No entries are no charges: a line is on the disk before what it charges for begins.
    """
    history = History(lines=len(entries))
    if not entries:
        return history
    if entries[0].get("kind") != "store" or entries[0].get("schema") != SCHEMA:
        raise UseError(
            f"{path} is not a store ledger of schema {SCHEMA}, it says "
            f"{entries[0].get('schema')!r}: what it charged is not known to this version"
        )
    history.id = str(entries[0].get("id", ""))
    for at, entry in enumerate(entries[1:], start=1):
        try:
            take(history, entry, at)
        except KeyError as error:
            raise UseError(
                f"line {at + 1} of {path} is of unknown kind, or speaks of what no line before it "
                f"charged: {error!s:.80}"
            ) from error
    return history


def take(history: History, entry: dict[str, Any], at: int) -> None:
    """Put the line at ``at`` of a ledger into what was read before it."""
    _READ[entry["kind"]](history, entry, at)


@lru_cache(maxsize=1024)  # a command reads its ledger many times, and most runs share a plan
def _plan(text: str) -> Plan:
    return decode(Plan, json.loads(text), what="the plan of a charge")


def _reserve(history: History, entry: dict[str, Any], at: int) -> None:
    run_id, noted = entry["run_id"], entry.get("recorded", {})
    plan, recorded = None, None
    try:
        plan = _plan(json.dumps(entry["plan"])) if entry["plan"] else None
    except UseError:
        if not noted:
            raise
        if noted.get("guarantee"):
            recorded = decode(Guarantee, noted["guarantee"], what=f"the price of {run_id}")
    history.charges[run_id] = Charge(
        run_id=run_id,
        at=at,
        plan=plan,
        recorded=recorded,
        module=str(noted.get("module", "")),
        steps=int(entry["plan"]["steps"]) if entry["plan"] else 0,
        again=entry["again"],
        base=_readable(history, entry["base"]),
        constants=entry["constants"],
        series=series.take_run(history, plan),
        logged=entry.get("logged", True),
        steered=entry.get("steered", False),
        when=entry.get("when"),
        state=entry.get("state", ""),
    )
    if entry["again"] is None:
        history.begun.setdefault(entry["constants"], at)


def _readable(history: History, lineage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A lineage with what is charged here as recorded: its plan could not be read there either."""
    if not lineage:
        return lineage

    def part(plain: Any) -> Any:
        charge = history.charges.get(plain.get("id", ""))
        if charge is None or charge.recorded is None:
            return plain
        bound = encode(charge.recorded)
        return {"kind": "bound", "id": charge.run_id, "what": charge.as_recorded, "bound": bound}

    return {**lineage, "parts": [part(one) for one in lineage.get("parts", ())]}


def _open(history: History, entry: dict[str, Any], at: int) -> None:
    history.nonces[entry["run_id"]] = (entry["nonce"], entry["attempts"])


def _settle(history: History, entry: dict[str, Any], at: int) -> None:
    run_id = entry["run_id"]
    history.settled.add(run_id)
    if run_id in history.charges:
        history.charges[run_id] = replace(
            history.charges[run_id], steps=entry["steps"], settled=True, ended=at
        )
    if "weights" in entry:
        _release(history, entry, at)


def _release(history: History, entry: dict[str, Any], at: int) -> None:
    lineage = _readable(history, entry["lineage"])
    released = Released(run_id=entry["run_id"], weights=entry["weights"], lineage=lineage or {})
    # The last word on these weights: a trial that won claims what choosing it cost.
    others = [one for one in history.released if one.weights != released.weights]
    history.released = [*others, released]


def _selection(history: History, entry: dict[str, Any], at: int) -> None:
    selection = tuning_from(entry["selection"])
    if not isinstance(selection, PrivateSelection):
        raise UseError(f"selection {entry['run_id']} is none that is private")
    history.charges[entry["run_id"]] = Charge(
        run_id=entry["run_id"],
        at=at,
        settled=True,
        selection=selection,
        when=entry.get("when"),
        state=entry.get("state", ""),
    )


def _slots(history: History, entry: dict[str, Any], at: int) -> None:
    history.slots[entry["run_id"]] = dict(entry["slots"])


def _trial(history: History, entry: dict[str, Any], at: int) -> None:
    history.taken[entry["slot"]] = entry["run_id"]
    history.bases[entry["run_id"]] = _readable(history, entry["base"]) or {}


def _score(history: History, entry: dict[str, Any], at: int) -> None:
    history.scores[entry["run_id"]] = entry["value"]


def _query(history: History, entry: dict[str, Any], at: int) -> None:
    history.charges[entry["run_id"]] = Charge(
        run_id=entry["run_id"],
        at=at,
        settled=True,
        query_epsilon=require_positive("pure_epsilon", entry["pure_epsilon"], at_most=700.0),
        query_name=entry["name"],
        base=_readable(history, entry["base"]),
        when=entry.get("when"),
        state=entry.get("state", ""),
    )


def _answer(history: History, entry: dict[str, Any], at: int) -> None:
    history.charges[entry["run_id"]] = replace(
        history.charges[entry["run_id"]], answer=entry["value"]
    )


def _look(history: History, entry: dict[str, Any], at: int) -> None:
    history.looks.append((at, entry["what"]))


def _forget(history: History, entry: dict[str, Any], at: int) -> None:
    history.erasures.append((entry["before"], entry["after"]))


def _declare(history: History, entry: dict[str, Any], at: int) -> None:
    history.declared.setdefault(entry["constants"], at)


def _sweep(history: History, entry: dict[str, Any], at: int) -> None:
    history.sweeps.setdefault(entry["run_id"], (at, tuple(entry["constants"])))


def _total(history: History, entry: dict[str, Any], at: int) -> None:
    history.total = (entry["epsilon"], entry["delta"])


def _budget(history: History, entry: dict[str, Any], at: int) -> None:
    what = "the filter of the budget"
    opened = decode(RenyiFilter, entry["filter"], what=what)
    history.budget = Opened(id=entry["run_id"], filter=opened, when=entry.get("when"))


def _series(history: History, entry: dict[str, Any], at: int) -> None:
    declared = decode(Series, entry["series"], what="a declared series")
    history.series[entry["run_id"]] = Declared(
        id=entry["run_id"], at=at, series=declared, when=entry.get("when")
    )


def _halt(history: History, entry: dict[str, Any], at: int) -> None:
    settling.read(history, entry["run_id"], attempts=entry["attempts"], at=at)


def _place(history: History, entry: dict[str, Any], at: int) -> None:
    history.copied = True


_READ: dict[str, Callable[[History, dict[str, Any], int], None]] = {
    "reserve": _reserve,
    "open": _open,
    "settle": _settle,
    "release": _release,
    "selection": _selection,
    "slots": _slots,
    "trial": _trial,
    "score": _score,
    "query": _query,
    "answer": _answer,
    "look": _look,
    "forget": _forget,
    "declare": _declare,
    "sweep": _sweep,
    "total": _total,
    "budget": _budget,
    "series": _series,
    "halt": _halt,
    "place": _place,
}
