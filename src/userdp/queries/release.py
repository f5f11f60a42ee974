"""Ask a store, and charge its people for the answers."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.data.verify import require_intact
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries.ownership import require_one_owner
from userdp.queries.statistics import draw, parse_statistic
from userdp.vocabulary import require_count, require_positive

DEFAULT_STATISTICS = ("users", "examples", "median")


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """An answer that may be published.

    Args:
        name: what was asked.
        value: the noisy answer.
        epsilon: what it cost, (ε, 0)-DP per user, add-or-remove.
        query_id: of its line in the store ledger.
    """

    name: str
    value: int
    epsilon: float
    query_id: str


def release(
    store: UserStore,
    *,
    epsilon: float,
    names: tuple[str, ...] = DEFAULT_STATISTICS,
    most_examples: int = 4096,
) -> list[Release]:
    """Noisy statistics of the training split, at ``epsilon`` in all.

    Guarantee: all answers together are (``epsilon``, 0)-DP per user, add-or-remove: each takes an
    equal share, and basic composition adds them. Each share is a line in the store's ledger, on
    the disk before its answer is drawn; a crash between the two leaves it charged. The answer
    follows there, where `userdp plan` finds it.

    Args:
        store: whose training users are counted; each user is in one row.
        epsilon: of all together; finite, > 0.
        names: as `parse_statistic`.
        most_examples: a public bound on a user's examples; a constant, not taken from the data.

    Raises:
        UseError: bad arguments, or records of the store have several owners under fixed-graph
            adjacency, for which these mechanisms promise nothing.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    require_count("most_examples", most_examples, at_most=2**30)
    if not names:
        raise UseError("no statistic is named", hint="one of: users, examples, median, p1 to p99")
    wanted = [parse_statistic(name) for name in names]
    require_one_owner(store.meta)
    require_intact(store)
    counts = store.split(Split.TRAIN).counts
    ledger = StoreLedger(store.path)
    share = epsilon / len(wanted)
    answers = []
    for statistic in wanted:
        query_id = f"query-{secrets.token_hex(8)}"
        ledger.query(query_id, name=statistic.name, pure_epsilon=share, state=store.meta.state.id)
        value = draw(statistic, counts, epsilon=share, most_examples=most_examples)
        ledger.answer(query_id, value=value)
        answers.append(Release(name=statistic.name, value=value, epsilon=share, query_id=query_id))
    return answers
