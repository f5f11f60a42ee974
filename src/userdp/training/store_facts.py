"""The preparation of a store: the claims that it allows, and the assumptions that it adds."""

from __future__ import annotations

from typing import Any

from userdp.core.errors import UseError
from userdp.core.vocabulary import Adjacency
from userdp.data.ownership import first_owner_facts
from userdp.data.splits import SplitRule
from userdp.data.user_store import UserStore
from userdp.plans import Plan


def store_facts(store: UserStore) -> dict[str, Any]:
    """Facts about the preparation of a store that a report must state.

    Guarantee (invariant 9): nothing here depends on the records. The assumption about owners is
    stated for every kind of source whose records *may* have several owners. Whether a record has
    several is itself a fact about people's records.

    Args:
        store: that is trained on.

    Returns:
        ``user_is``: the field that named the user of a record, in words; and ``owners`` (the
        assumption, in words), if records may have several.
    """
    facts: dict[str, Any] = {}
    sources, rule = store.meta.sources, store.meta.ownership
    user_is = dict.fromkeys(words for one in sources if (words := one.get("user_is")))
    if user_is:
        facts["user_is"] = "; ".join(user_is)
    if rule["rule"] != "greedy" and any(one.get("may_name_several") for one in sources):
        facts["owners"] = first_owner_facts()["assumption"]
    return facts


def require_covered(store: UserStore, plan: Plan) -> None:
    """Refuse a plan whose adjacency is not the one that the store's preparation supports.

    A store of ``--records-per-user K`` holds records of several owners, so that
    one user's text lies with others too. Over it a plan must claim ``fixed-graph`` adjacency, with
    example-level sampling (`Plan` sees to that) and ``group_size`` at least K: then no cap binds,
    whether a record trains depends only on its own text, and a user owns at most G of what trains.

    A split of held-out records by their number among their holder's *usable* records would break
    that: a user who empties a shared record moves the holder's later records from one split to the
    other, though they are not this user's. Such stores are refused.

    Raises:
        UseError: names the rule that does not hold, and the way out.
    """
    rule = store.meta.ownership
    bounded = rule["adjacency"] == Adjacency.FIXED_GRAPH
    claimed = plan.sampling.adjacency is Adjacency.FIXED_GRAPH
    if claimed and not bounded:
        raise UseError(
            f"the plan claims fixed-graph adjacency, and each record of the store at {store.path} "
            "has one user: its claims are for add-or-remove",
            hint="use --set sampling.kind=examples",
        )
    if not bounded:
        return
    bound = int(rule["records_per_user"])
    if not claimed:
        raise UseError(
            f"records of the store at {store.path} have several owners: a claim that says "
            f"{plan.sampling.adjacency} would be false",
            hint=f"train with --set sampling.kind=fixed-graph --group-size {bound}, or "
            "prepare without --records-per-user, where a record belongs only to its first owner",
        )
    group = plan.sampling.group_size
    if group < bound:
        raise UseError(
            f"users own up to {bound} records of the store at {store.path}, and group_size is "
            f"{group}: other users would decide which of one holder's records it leaves out",
            hint=f"use --group-size {bound}, or prepare with --records-per-user {group}",
        )
    split = store.meta.sources[0].get("split", SplitRule.HASH)
    by_number = split == SplitRule.HASH and store.meta.held_out_examples > 0
    if by_number or split == SplitRule.FIRST_PART:
        raise UseError(
            f"{store.path} holds records out by how many are usable: a text would move records of "
            "others to another split",
            hint="prepare it with --split hash --held-out-examples 0",
        )
