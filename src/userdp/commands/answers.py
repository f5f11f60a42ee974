"""What the commands return, and how a run is named.

An answer is a dict, the object of ``--json``; or a dataclass that can do more, such as `to_pandas`.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.claims import Claim
from userdp.core.codec import plain
from userdp.core.errors import UseError
from userdp.ledger import RunFolder

if TYPE_CHECKING:
    import pandas as pd


INNER = {"inner": True}
"""Of a field that is a mapping, or has a `to_dict`: its values stand among the answer's own."""


class Answer:
    """Base of what the commands return. The exit status is 1 where `passed` or `ok` is false."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The object of ``--json``: every field, but those that are None as by default."""
        values: dict[str, Any] = {}
        # Each subclass is a dataclass, which a base cannot say.
        for one in dataclasses.fields(self):  # type: ignore[arg-type]
            value = plain(getattr(self, one.name))
            if "inner" in one.metadata:
                values |= value or {}
            elif value is not None or one.default is not None:
                values[one.name] = value
        return values

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of several things that it holds."""
        return []

    def to_pandas(self) -> pd.DataFrame:
        """`rows` as a data frame."""
        import pandas as pd

        return pd.DataFrame(self.rows())


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run's folder and what it claims.

    Args:
        path: the folder.
        claim: of all that the run released, from its ledger.
        algorithm: as its plan says; None of a run without privacy.
        steps: taken.
        seconds: that the steps took in this call.
    """

    path: Path
    claim: Claim
    algorithm: str | None
    steps: int
    seconds: float

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def model(self) -> Path:
        """The released weights, in the format of `transformers`, or of `peft` if they are alone."""
        return RunFolder(self.path).released

    @property
    def ledger(self) -> Path:
        """One line per attempted step; may be handed on."""
        return RunFolder(self.path).ledger

    def to_dict(self) -> dict[str, Any]:
        """The object of ``userdp train --json``."""
        return {
            **self.claim.to_dict(),
            "algorithm": self.algorithm,
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "run": str(self.path),
            "model": str(self.model),
            "ledger": str(self.ledger),
        }


def folder_of(run: str | os.PathLike[str]) -> Path:
    """The folder of a run; `UseError` where there is none."""
    path = Path(run)
    if not path.is_dir():
        raise UseError(
            f"there is no run at {path}", hint="name the folder that a run was trained in"
        )
    return path
