"""``userdp store stats``: a store in numbers, exactly for its operator or under DP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from userdp.core.codec import encode, plain
from userdp.core.errors import UseError
from userdp.data.exact_counts import describe
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.queries import DEFAULT_STATISTICS, release


def stats(
    store: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    ask: Sequence[str] = (),
    most_examples: int = 4096,
) -> dict[str, Any]:
    """Count a store's users and examples: exactly, or under DP.

    Without epsilon the numbers are exact, so they are for the store's operator: they are not
    differentially private, and nothing public, nor a constant of a plan, may be derived from them.
    With it they may be published; what they cost is written in the store's privacy ledger first.

    Example::

        userdp store stats store

    Args:
        store: a user store, or its folder.
        epsilon: of all answers together, per user, add-or-remove.
        ask: users, examples, median, p1 to p99; by default users, examples and median.
        most_examples: public bound on a user's examples; a user with more counts as having so many.

    Returns:
        The exact numbers, ``operator_only``; or the DP ``answers`` and their price.

    Raises:
        UseError: no store is there, an argument is out of range, or the budget refuses the price.
    """
    if epsilon is None and ask:
        raise UseError("--ask is for private statistics", hint="give --epsilon as well")
    opened = UserStore.open(path := Path(store), fixed_graph=True)
    if epsilon is None:
        StoreLedger(path).look("stats")
        return {"store": str(path), **plain(describe(opened))}
    names = tuple(ask) or DEFAULT_STATISTICS
    answers = release(opened, epsilon=epsilon, names=names, most_examples=most_examples)
    price = {"epsilon": epsilon, "delta": 0.0, "unit": "user", "adjacency": "add-or-remove"}
    return {"store": str(path), "operator_only": False, **price, "answers": encode(answers)}
