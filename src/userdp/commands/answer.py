"""What a command returns: a frozen dataclass whose fields are the keys of ``--json``."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from userdp.claims import Claim
from userdp.reporting.table import Table

if TYPE_CHECKING:
    import pandas as pd

Part: TypeAlias = str | Table | Claim | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What an answer in words is made of: a sentence, a table, a claim, named values, or rows."""


class Answer:
    """Base of what the commands return. The exit status is 1 where `passed` or `ok` is false."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return _fields(self)

    def rows(self) -> list[dict[str, Any]]:
        """What it holds of several things, a row each."""
        return []

    def to_pandas(self) -> pd.DataFrame:
        """`rows` as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())


def plain(value: Any) -> Any:
    """A value as JSON holds it: infinity and NaN, which it does not have, become words.

    >>> from pathlib import Path
    >>> plain({"epsilon": float("inf"), "run": Path("run"), "bounds": (1.0, 2.0)})
    {'epsilon': 'inf', 'run': 'run', 'bounds': [1.0, 2.0]}
    """
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _fields(value: Any) -> dict[str, Any]:
    return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
