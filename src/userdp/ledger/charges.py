"""What a store's ledger holds of each charge, series, budget and released model; see `history`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from userdp.accounting.filters import RenyiFilter
from userdp.plans import Plan, PrivateSelection, Series
from userdp.vocabulary import Guarantee


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """What one run or query costs the people of a store.

    Args:
        run_id: of the run, the query or the selection.
        at: the line that it was charged in.
        plan: None for a run without privacy, for a query and for a selection.
        steps: charged; 0 for a query and for a selection, which is charged as a whole.
        settled: what it costs is final.
        query_epsilon: of a query with pure (ε, 0)-DP per user, add-or-remove; None for a run.
        query_name: what was asked.
        answer: what was released; None if a crash came between the charge and its answer.
        selection: of a private selection, all of whose trials this pays for.
        again: the run that this is a further charge of the whole plan of; None for a first one.
        base: what the model descends from that the run began from, or that the query is about, as
            plain values.
        constants: the digest of a run's plan and options.
        series: the id of the declared series that pays for it; None where it pays for itself.
        stopped: the attempts of a run that was settled before its end, where only these count
            against a filter (`userdp.ledger.settling`); None where the whole plan does.
        logged: a run that kept exact numbers for its operator.
        steered: a loop of somebody's own takes its steps; see `History.looked_during`.
        ended: the line that settled it; None before that.
        when: the date and time that it was charged at, in UTC; None in ledgers of before that was
            noted.
        state: the id of the state that the store was in; empty where that was not written.
        recorded: of a run whose plan cannot be read here, since its sampling is somebody's own and
            ``module`` was not imported: the price that its line records.
        module: where that sampling is defined.
    """

    run_id: str
    at: int
    plan: Plan | None = None
    steps: int = 0
    settled: bool = False
    query_epsilon: float | None = None
    query_name: str | None = None
    answer: int | None = None
    selection: PrivateSelection | None = None
    again: str | None = None
    base: Mapping[str, Any] | None = None
    constants: str = ""
    series: str | None = None
    stopped: int | None = None
    logged: bool = True
    steered: bool = False
    ended: int | None = None
    when: str | None = None
    state: str = ""
    recorded: Guarantee | None = None
    module: str = ""

    @property
    def as_recorded(self) -> str:
        """What it is in words, where `recorded` stands in place of its plan."""
        return (
            f"training by a sampling of {self.module}, as recorded (import {self.module} to "
            "recompute)"
        )

    @property
    def shows_losses(self) -> bool:
        """Whether its operator sees exact losses of it."""
        return self.query_epsilon is None and self.logged


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """A series of runs that was declared, and what of it was taken.

    Args:
        id: random.
        at: the line that declared it.
        series: what was declared.
        runs: of it that were charged.
        when: it was declared.
    """

    id: str
    at: int
    series: Series
    runs: int = 0
    when: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A budget with a filter, as it was opened.

    Args:
        id: random.
        filter: total, order and reserve.
        when: it was opened.
    """

    id: str
    filter: RenyiFilter
    when: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """Weights that a run over these people released.

    Args:
        run_id: of the run.
        weights: their digest (`userdp.claims.weights`).
        lineage: what they descend from, as plain values.
    """

    run_id: str
    weights: str
    lineage: Mapping[str, Any]
