"""Which way each line of a store's ledger is paid for: by a filter, a declared series, or itself.

It is the first of these that applies, always: a store with a budget pays everything by its filter;
a run or an answer of a declared series is paid by the series; what is left adds up (basic
composition). It follows from the order of the lines, and from nothing that anybody decides later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from userdp.claims.parts import Bound, Choice, Filtered, OfSeries, Part, Query, Steps, Unclaimed
from userdp.codec import decode
from userdp.errors import UseError
from userdp.ledger.budget import adjacency_of
from userdp.ledger.charges import Charge
from userdp.ledger.history import History
from userdp.plans import Plan


def parts_of(history: History, charges: Iterable[Charge]) -> list[Part]:
    """What lines of a store's ledger paid for, each part once.

    A filter and a series are parts as a whole, as soon as one of the lines is theirs. Further
    charges of a run's plan are part of the run.
    """
    parts: dict[str, Part] = {}
    for charge in charges:
        shared = _shared(history, charge)
        first = parts.get(charge.again or "")
        if shared is not None:
            parts[shared.id] = shared
        elif isinstance(first, Steps):
            parts[first.id] = replace(first, further=(*first.further, charge.run_id))
        else:
            parts[charge.run_id] = _own(charge)
    return list(parts.values())


def payer_of(history: History, run_id: str) -> Part | None:
    """What pays for a run together with others; None where it pays for itself.

    Args:
        history: of the ledger that it is charged in.
        run_id: of the run, or of a trial of a private selection.
    """
    charge = history.charges.get(run_id)
    if charge is not None:
        return _shared(history, charge)
    slot = next((slot for slot, taken in history.taken.items() if taken == run_id), None)
    for selection_id, slots in history.slots.items():
        if slot in slots:
            return _shared(history, history.charges[selection_id])
    return None


def read_payer(path: Path, values: Any, plan: Plan) -> Part:
    """What pays for a run together with others, from the first line of its ledger.

    Raises:
        UseError: it does not pay for runs of this plan.
    """
    part = decode(Part, values, what=f"what pays for the run in {path}")
    if isinstance(part, OfSeries) and part.series.holds(plan):
        return part
    if isinstance(part, Filtered) and plan.sampling.adjacency is part.adjacency:
        return part
    raise UseError(
        f"the first line of {path} says that {part.in_words} pays for the run, which is of another "
        "price: the ledger was edited, and no epsilon can be claimed from it"
    )


def _shared(history: History, charge: Charge) -> Part | None:
    if history.budget is not None:
        opened = history.budget
        return Filtered(id=opened.id, filter=opened.filter, adjacency=adjacency_of(charge))
    if charge.series is not None:
        return OfSeries(id=charge.series, series=history.series[charge.series].series)
    return None


def _own(charge: Charge) -> Part:
    if charge.query_epsilon is not None:
        name = charge.query_name or "a statistic"
        return Query(id=charge.run_id, name=name, pure_epsilon=charge.query_epsilon)
    if charge.selection is not None:
        return Choice(id=charge.run_id, tuning=charge.selection)
    if charge.recorded is not None:
        return Bound(id=charge.run_id, what=charge.as_recorded, bound=charge.recorded)
    if charge.plan is None:
        return Unclaimed(id=charge.run_id, why="training without privacy")
    return Steps(id=charge.run_id, plan=charge.plan)
