"""`Unprotected`: the steps of a silo that adds no noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userdp.training.config import PlainPlan


@dataclass(frozen=True, kw_only=True)
class Unprotected(PlainPlan):
    """One round of a silo without privacy; it stands where other algorithms have a `Plan`."""

    kind: ClassVar[str] = "unprotected"
