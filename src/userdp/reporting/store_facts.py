"""What a run's configuration says of how its store was made, as assumptions of the claim."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

CONFIG = "config.json"
_LONGEST = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFacts:
    """Public constants of a store's preparation.

    Args:
        owners: the assumption that was made where a record may have several owners; else None.
        filtered_against: names of private data that the training text, or the base model's, was
            filtered against.
    """

    owners: str | None = None
    filtered_against: tuple[str, ...] = ()


def read_store_facts(run: Path) -> StoreFacts:
    """From ``run``'s config.json; nothing where it says nothing."""
    try:
        facts = json.loads((run / CONFIG).read_text(encoding="utf-8"))["store_facts"]
        owners, against = facts.get("owners"), facts.get("filtered_against_private", ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return StoreFacts()
    return StoreFacts(
        owners=owners[:_LONGEST] if isinstance(owners, str) else None,
        filtered_against=tuple(str(name)[:_LONGEST] for name in against)
        if isinstance(against, list)
        else (),
    )
