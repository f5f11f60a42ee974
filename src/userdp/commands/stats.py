"""``userdp store stats``: a store in numbers, exactly for its operator or under DP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.codec import encode
from userdp.commands.answer import Answer, Part, plain
from userdp.data.near_ids import near_hint
from userdp.data.statistics import StoreStatistics, describe
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import DEFAULT_STATISTICS, Release, release


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted(Answer):
    """A store in numbers.

    Args:
        store: its folder.
        exact: operator-only; None where the numbers were released under DP.
        epsilon: of all answers together; None of exact numbers.
        answers: what was released.
    """

    store: Path
    exact: StoreStatistics | None = None
    epsilon: float | None = None
    answers: tuple[Release, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """What ``userdp store stats --json`` prints."""
        if self.exact is not None:
            return {"store": str(self.store), **plain(self.exact)}
        return {
            "store": str(self.store),
            "operator_only": False,
            "epsilon": self.epsilon,
            "delta": 0.0,
            "unit": "user",
            "adjacency": "add-or-remove",
            "answers": encode(self.answers),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One for each answer, or for each split."""
        if self.exact is None:
            return list(encode(self.answers))
        splits = plain(self.exact)["splits"].items()
        return [
            {
                "split": name,
                "users": one["users"],
                "examples": one["examples"],
                "tokens": one["tokens"],
                **one["examples_per_user"],
            }
            for name, one in splits
        ]


def stats(
    store: str | os.PathLike[str],
    *,
    epsilon: float | None = None,
    ask: Sequence[str] = (),
    most_examples: int = 4096,
) -> Counted:
    """Count a store's users and examples: exactly (operator-only), or with epsilon under DP.

    Without epsilon the numbers are exact, so they are for the store's operator: they are not
    differentially private, and nothing public, nor a constant of a plan, may be derived from them.
    With it they may be published; what they cost is written in the store's privacy ledger first.

    Args:
        store: a user store, or its folder.
        epsilon: of all answers together, per user, add-or-remove.
        ask: users, examples, median, p1 to p99; by default users, examples and median.
        most_examples: public bound on a user's examples; a user with more counts as having so many.

    Raises:
        UseError: no store is there, an argument is out of range, or the budget refuses the price.
    """
    if epsilon is None:
        if ask:
            raise UseError("--ask is for private statistics", hint="give --epsilon as well")
        opened = UserStore.open(path := Path(store), fixed_graph=True)
        StoreLedger(path).look("stats")
        return Counted(store=path, exact=describe(opened))
    answers = release(
        UserStore.open(path := Path(store), fixed_graph=True),
        epsilon=epsilon,
        names=tuple(ask) or DEFAULT_STATISTICS,
        most_examples=most_examples,
    )
    return Counted(store=path, epsilon=epsilon, answers=tuple(answers))


def in_words(counted: Counted) -> Iterator[Part]:
    """The numbers, and how often each number of examples per user occurs."""
    yield {key: one for key, one in counted.to_dict().items() if key not in ("splits", "answers")}
    yield counted.rows()
    if counted.exact and (hint := near_hint(counted.exact.near_colliding_users or 0)) is not None:
        yield f"warning: {hint}"
