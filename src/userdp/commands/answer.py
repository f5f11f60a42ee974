"""What a command returns: a frozen dataclass whose fields are the keys of ``--json``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from userdp.core.codec import plain

if TYPE_CHECKING:
    import pandas as pd


INNER = {"inner": True}
"""Of a field that is a mapping, or has a `to_dict`: its values stand among the answer's own."""
ASIDE = {"aside": True}
"""Of a field that is no part of ``--json``."""


class Answer:
    """Base of what the commands return. The exit status is 1 where `passed` or `ok` is false."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints: every field; one that is None by default is left out."""
        told: dict[str, Any] = {}
        # Each subclass is a dataclass, which a base cannot say.
        for one in dataclasses.fields(self):  # type: ignore[arg-type]
            value = plain(getattr(self, one.name))
            if "inner" in one.metadata:
                told |= value or {}
            elif "aside" not in one.metadata and (value is not None or one.default is not None):
                told[one.name] = value
        return told

    def rows(self) -> list[dict[str, Any]]:
        """What it holds of several things, a row each."""
        return []

    def to_pandas(self) -> pd.DataFrame:
        """`rows` as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())
