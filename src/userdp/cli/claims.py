"""How commands print a claim: the headline, what an unfinished run spent, and its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from userdp.reporting.table import Table

if TYPE_CHECKING:
    from userdp.claims import Claim


def claim_parts(claimed: Claim) -> Iterator[Table | str]:
    """The claim in words; what its attempted steps cost; what is printed beside the model, and both
    together; and a table of the claim's parts, if several."""
    from userdp.claims.headline import printed_in_words, so_far_in_words
    from userdp.reporting.parts import parts_of_claim

    yield f"Claim: {claimed.headline}."
    so_far = so_far_in_words(claimed)
    if so_far is not None:
        yield f"{so_far}."
    printed = printed_in_words(claimed)
    if printed is not None:
        yield f"{printed}."
    table = parts_of_claim(claimed)
    if table is not None:
        yield table
