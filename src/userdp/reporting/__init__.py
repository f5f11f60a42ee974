"""From runs to what a reader sees: plots and one self-contained HTML page.

The public part is rendered only from `facts.Facts`, which are read from the run's ledger and the
allowed constants of its configuration; what the operator may know comes apart, as
`operator_part.OperatorFacts`, and the public page is rendered without it.
"""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "page": ("render_report",),
    "meaning": ("meaning_of_claim",),
    "card": ("render_model_card",),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
