"""``userdp settle``: end a run before its plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer
from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.api.settle import Settled


def settle(run: Path, /) -> Answer:
    """End an unfinished run: nobody goes on with it, and its price is final.

    Under a budget with a filter (userdp budget STORE --epsilon E --delta D) the steps that did not
    run are given back, if nothing but released numbers can have chosen the moment: the store's
    ledger shows no exact look, and all its runs were trained with --no-exact-log. In any other
    case the run costs its whole plan, as it did before; which of the two it is, and why, is said.

    Args:
        run: the folder of an unfinished run (RUN).
    """
    from userdp.api.settle import settle as api

    settled = api(run)
    return Answer(values={"run": str(run), **settled.to_dict()}, parts=_parts(settled))


def _parts(settled: Settled) -> Iterator[Table | str]:
    yield str(settled)
    yield "The run is closed: no folder of it goes on."
    yield f"The store at {settled.ended.store}:"
    yield from claim_parts(settled.store_claim)
