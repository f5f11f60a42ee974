"""What is written as one JSON file: its digest, and how it is saved and read."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from userdp.codec import decode, digest, encode
from userdp.files import read_json, write_json


class Saved:
    """A dataclass that is a file of its own; see `userdp.codec`."""

    what: ClassVar[str]
    """What the file holds, for messages."""

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal for equal plans only."""
        return digest(self)

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        write_json(Path(path), encode(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read one; `UseError` if the file is none."""
        return decode(cls, read_json(Path(path), what=f"a {cls.what}"), what=f"the {cls.what}")
