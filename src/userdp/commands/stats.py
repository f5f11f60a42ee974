"""``userdp store stats``: a store in numbers, exactly for its operator or under DP."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.codec import encode
from userdp.commands.words import for_whom
from userdp.data.near_ids import near_hint
from userdp.data.statistics import QUANTILES, StoreStatistics, describe
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import DEFAULT_STATISTICS, Release, release
from userdp.reporting.table import Table
from userdp.vocabulary import epsilon_up

_BAR_WIDTH = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
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
            return {"store": str(self.store), **self.exact.to_dict()}
        return {
            "store": str(self.store),
            "operator_only": False,
            "epsilon": self.epsilon,
            "delta": 0.0,
            "unit": "user",
            "adjacency": "add-or-remove",
            "answers": encode(self.answers),
        }


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


def in_words(counted: Counted) -> Iterator[Table | str]:
    """The numbers, and for whom they are."""
    exact = counted.exact
    if exact is None:
        yield from (f"{answer.value:>14,}  {answer.name}" for answer in counted.answers)
        yield (
            f"({epsilon_up(counted.epsilon or 0)}, 0)-DP per user, add-or-remove, written in the "
            "store's privacy ledger"
        )
        yield for_whom(operator_only=False, why="released under DP, at this price")
        return
    why = "exact counts of people and of their text, which no epsilon covers"
    yield f"{for_whom(operator_only=True, why=why)}\n"
    yield (
        f"{exact.records_read:,} records read, {exact.records_stored:,} stored; {exact.users:,} "
        f"users, {exact.examples:,} examples of at most {exact.seq_len} tokens, {exact.tokens:,} "
        "tokens"
    )
    for reason, count in {**exact.drops, **exact.example_drops}.items():
        yield f"  dropped {count:,}: {reason}"
    if (hint := near_hint(exact.near_colliding_users or 0)) is not None:
        yield f"warning: {hint}"
    splits = exact.splits.values()
    levels = {key: [split.examples_per_user.get(key) for split in splits] for key in QUANTILES}
    means = [split.mean_examples_per_user for split in splits]
    yield Table(
        columns=("", *exact.splits),
        rows=[
            *(
                (key, *(f"{getattr(split, key):,}" for split in splits))
                for key in ("users", "examples", "tokens")
            ),
            ("examples per user", *("" for _ in splits)),
            *(
                (f"  {key}", *("" if level is None else f"{level:,}" for level in row))
                for key, row in levels.items()
            ),
            ("  mean", *("" if mean is None else f"{mean:.1f}" for mean in means)),
        ],
    )
    if histogram := exact.splits["train"].histogram:
        yield "\ntraining users by number of examples (both scales logarithmic)"
        longest = math.log1p(max(users for _, _, users in histogram))
        for least, greatest, users in histogram:
            label = f"{least:,}" if least == greatest else f"{least:,}-{greatest:,}"
            bar = "█" * round(_BAR_WIDTH * math.log1p(users) / longest)
            yield f"{label:>19}  {users:>9,} {bar}"
