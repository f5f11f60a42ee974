"""What a claim is made of, as a table."""

from __future__ import annotations

from userdp.claims import Claim
from userdp.reporting.numbers import delta_text, epsilon_text
from userdp.reporting.table import Table, table_of


def parts_of_claim(claim: Claim, *, name: str = "") -> Table | None:
    """The parts and their prices; None of a claim with a single part, which is all of it.

    Args:
        claim: of a run, a store or a model.
        name: of the run, for a page that shows several.
    """
    if len(claim.parts) < 2:
        return None
    priced = [(part.in_words, part.guarantee()) for part in claim.parts]
    return table_of(
        priced,
        {
            "Part": lambda one: one[0],
            "ε at most": lambda one: epsilon_text(one[1].epsilon),
            "δ": lambda one: delta_text(one[1].delta),
        },
        caption=f"What the claim of {name} is made of" if name else "What the claim is made of",
    )
