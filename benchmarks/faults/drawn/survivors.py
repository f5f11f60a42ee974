"""The mutants that no test notices, and why each may stay: ``survivors.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

LIST = Path(__file__).parent / "survivors.toml"


class Kind(StrEnum):
    """Why a survivor may stay.

    SAME: no input shows a difference, or only one in the time that something takes.
    AS_RIGHT: the results differ, and both hold: a bracket that is wider, another line as proven.
    SLACK: an allowance for rounding or for what is left out is smaller than what was proven, and
        still larger than the error everywhere that tests look.
    WORDS: only what a person reads differs, and says the same.
    OPEN: a test is missing.
    """

    SAME = "same"
    AS_RIGHT = "as right"
    SLACK = "slack"
    WORDS = "words"
    OPEN = "open"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why one survivor may stay.

    Args:
        name: of the mutant.
        kind: of the reason.
        why: in one sentence.
    """

    name: str
    kind: Kind
    why: str


def read_survivors(path: Path = LIST) -> dict[str, Reason]:
    """All reasons, by the mutant's name."""
    entries = tomllib.loads(path.read_text("utf-8")).get("survivor", [])
    return {
        one["name"]: Reason(name=one["name"], kind=Kind(one["kind"]), why=one["why"])
        for one in entries
    }
