"""What the campaign ever found: small cases that are kept, and tried again by the tests.

::

    tests/hostile/corpus/TARGET/NAME/case.toml    what happened, in one sentence
    tests/hostile/corpus/TARGET/NAME/FILE         the file as it was, in its place
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.hostile.cases import Case

CORPUS = Path(__file__).parents[3] / "tests" / "hostile" / "corpus"
_ABOUT = "case.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A finding that was mended.

    Args:
        target: whose world it is of.
        name: in lower case, with hyphens.
        what: happened before it was mended, in one sentence.
        case: that found it.
    """

    target: str
    name: str
    what: str
    case: Case


def read_corpus(folder: Path = CORPUS) -> list[Kept]:
    """All that is kept, by target and name."""
    return [_kept(path.parent) for path in sorted(folder.glob(f"*/*/{_ABOUT}"))]


def _kept(folder: Path) -> Kept:
    about = tomllib.loads((folder / _ABOUT).read_text("utf-8"))
    (file,) = (path for path in folder.rglob("*") if path.is_file() and path.name != _ABOUT)
    return Kept(
        target=folder.parent.name,
        name=folder.name,
        what=about["what"],
        case=Case(file=file.relative_to(folder).as_posix(), content=file.read_bytes()),
    )
