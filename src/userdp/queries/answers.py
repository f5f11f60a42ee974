"""Several questions to the same people: all are charged, on the disk, before one is answered."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.ledger import StoreLedger


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One number that is asked of the people of a store.

    Args:
        name: what is asked; public, for the ledger.
        draw: from a list of one whole number per user, a noisy answer at ``epsilon``.
        held: those numbers.
        epsilon: the price, (ε, 0)-DP per user, add-or-remove.
    """

    name: str
    draw: Any
    held: list[int]
    epsilon: float


def ask(
    store: UserStore, questions: Sequence[Question], *, of: Lineage | None
) -> tuple[list[int], tuple[str, ...]]:
    """The answers, and the ids of their lines in the store's ledger.

    Guarantee: (Σ epsilon, 0)-DP per user by basic composition. A crash between charges and answers
    leaves all charged. ``of`` is what the models descend from that the numbers are a function of.
    """
    ledger = StoreLedger(store.path)
    ids = [f"query-{secrets.token_hex(8)}" for _ in questions]
    base = of.plain if of else None
    for query_id, one in zip(ids, questions, strict=True):
        ledger.query(
            query_id,
            name=one.name,
            pure_epsilon=one.epsilon,
            base=base,
            state=store.meta.state.id,
        )
    answers = []
    for query_id, one in zip(ids, questions, strict=True):
        answer = int(one.draw(one.held))
        ledger.answer(query_id, value=answer)
        answers.append(answer)
    return answers, tuple(ids)
