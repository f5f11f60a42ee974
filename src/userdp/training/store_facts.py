"""What a store's preparation adds to the assumptions of a claim: constants for the ledger."""

from __future__ import annotations

from typing import Any

from userdp.data.ownership import first_owner_facts
from userdp.data.store import UserStore
from userdp.ledger.folder import facts_of_model

_MAY_NAME_SEVERAL = ("jsonl", "csv", "parquet", "hf", "mbox", "maildir")


def store_facts(store: UserStore, *, base_model: str | None = None) -> dict[str, Any]:
    """What a report must say of how a store was made, and of what the base model depends on.

    Guarantee (invariant 9): nothing here depends on the records. The assumption about owners is
    told for every kind of source whose records *may* have several, whether or not one has:
    that itself would be a fact about people's records.

    Args:
        store: that is trained on.
        base_model: where training begins; a folder in a run's is asked what it was trained on.

    Returns:
        Any of ``owners`` (the assumption, in words) and ``filtered_against_private`` (names of the
        private data that the training text, or the base model's, was filtered against).
    """
    found: dict[str, Any] = {}
    rule = store.meta.ownership
    kinds = store.meta.sources
    if rule["rule"] != "greedy" and (
        "assumption" in rule or any(kind.get("kind") in _MAY_NAME_SEVERAL for kind in kinds)
    ):
        found["owners"] = first_owner_facts()["assumption"]
    against = {
        str(provenance["private_data"])
        for kind in kinds
        for provenance in kind.get("filtered_against_private", ())
    }
    against |= _of_base(base_model)
    if against:
        found["filtered_against_private"] = sorted(against)
    return found


def _of_base(model: str | None) -> set[str]:
    """What the run that released ``model`` says of its own text."""
    if model is None:
        return set()
    facts = facts_of_model(model).get("store_facts")
    return set(map(str, facts.get("filtered_against_private", ()))) if facts else set()
