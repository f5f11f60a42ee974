"""A plan from gradient norms of another store, model or adapters is refused by `train`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from userdp.core.errors import UseError
from userdp.plans.provenance import MadeFor
from userdp.training.model_origin import ledger_id, require_made_for

MADE = MadeFor(weights="a" * 64, adapters="rank 4")


@pytest.mark.pitfall(number=44)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, None),
        ({"store": None, "weights": None}, None),
        ({"store": "another"}, "store"),
        ({"weights": "b" * 64}, "base model"),
        ({"adapters": "rank 8"}, "adapters"),
        ({"adapters": None}, "adapters"),
    ],
)
def test_a_plan_is_for_what_its_norms_were_measured_on(
    store: Any, changes: dict[str, str | None], what: str | None
) -> None:
    wanted = replace(MADE, **{"store": ledger_id(store), **changes})
    if what is None:
        require_made_for(wanted, store, MADE)
        return
    with pytest.raises(UseError, match=rf"norms of another {what}"):
        require_made_for(wanted, store, MADE)
