"""What was released beside a model, and what both cost together.

`userdp evaluate --epsilon` writes a loss into the ledger of a finished run, at a price of its own:
the claim is of the model, which the loss came after. But whoever reads the ledger, a report or an
export sees both, so that whatever tells the claim tells this too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from userdp.claims.parts import Query
from userdp.errors import UseError
from userdp.ledger.run import releases_of
from userdp.vocabulary import Adjacency, Guarantee, PrivacyUnit

_TIMES = {Adjacency.ADD_OR_REMOVE: 1, Adjacency.REPLACE: 2, Adjacency.ZERO_OUT: 2}
"""Prices of answers are for adding or removing a user. Whoever exchanges one removes one and adds
another, which costs twice as much (group privacy: Dwork and Roth 2014, Theorem 2.2). Under fixed
graph adjacency a record may have several owners, and no multiple holds."""
_LONGEST = 80


def printed_in(path: Path, entries: list[dict[str, Any]]) -> tuple[Query, ...]:
    """The answers that were released after a run had ended: lines of its ledger.

    Raises:
        UseError: a line is none.
    """
    return tuple(_answer(path, at, entry) for at, entry in enumerate(releases_of(entries)))


def together(model: Guarantee, printed: Sequence[Query]) -> Guarantee:
    """What a model and the answers printed beside it cost a user whose text is in both.

    Guarantee: basic composition (Dwork and Roth 2014, Theorem 3.16), in the adjacency of the
    model's claim; ε is infinite where no sum bounds anything. For somebody who was only trained on,
    or only asked, it is less.

    Args:
        model: the claim of the model.
        printed: what stands beside it.
    """
    times = _TIMES.get(model.adjacency) if model.unit is PrivacyUnit.USER else None
    price = math.fsum(one.pure_epsilon for one in printed)
    epsilon = math.inf if times is None else math.fsum((model.epsilon, times * price))
    return replace(model, epsilon=epsilon, accountant=f"{model.accountant} + pure")


def printed_dict(model: Guarantee, printed: Sequence[Query]) -> dict[str, Any]:
    """As plain values, for JSON; empty where nothing is printed beside the model."""
    if not printed:
        return {}
    told = [{"id": one.id, "what": one.in_words, "epsilon": one.pure_epsilon} for one in printed]
    return {"printed": told, "together": asdict(together(model, printed))}


def _answer(path: Path, at: int, entry: dict[str, Any]) -> Query:
    try:
        name = f"loss on {str(entry['split'])[:_LONGEST]}"
        epsilon = float(entry["epsilon"])
        ids = [str(one) for one in entry.get("query_ids", ())]  # of the store's ledger
    except (KeyError, TypeError, ValueError) as error:
        raise UseError(f"the ledger {path} holds a release that is none: {error!r}") from error
    if not 0 < epsilon < math.inf:
        raise UseError(f"the ledger {path} holds a release at epsilon = {epsilon!r}")
    return Query(id="+".join(ids) or f"release {at}", name=name, pure_epsilon=epsilon)
