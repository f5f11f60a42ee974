"""From a privacy and a compute budget to the best plan, and why.

Nothing but arithmetic: the budget, public constants and measured gradient norms come in as
numbers, so that nothing here reads a store or loads a model.
"""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "norms": ("GradientNorms",),
    "planner": ("Request", "propose"),
    "proposal": ("Proposal", "as_plan"),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
