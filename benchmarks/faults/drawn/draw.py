"""The draw: 600 mutants by a committed seed, so many of each part of the source.

Places are ranked by the digest of the seed and their name, and the first ones of each part are
taken; the digest says too which way a place is changed. So nobody chooses, and a change of the
source moves only the places of the functions that changed: most verdicts stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.faults.drawn.positions import Mutant, Place, mutant, places
from benchmarks.faults.planted import PACKAGE, ROOT

SEED = "userdp mutants 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Some modules, of which so many mutants are drawn.

    Args:
        name: of the part, on the page.
        paths: files and folders below ``src/userdp``.
        without: folders within those that belong to another part.
        count: of mutants.
    """

    name: str
    paths: tuple[str, ...]
    without: tuple[str, ...] = ()
    count: int

    def files(self, package: Path) -> list[str]:
        """Its modules, below ``package``."""
        found: list[Path] = []
        for path in self.paths:
            whole = package / path
            found += sorted(whole.rglob("*.py")) if whole.is_dir() else [whole]
        names = (str(path.relative_to(package)) for path in found)
        return [name for name in names if not name.startswith(self.without or ("/",))]


PARTS = (
    Part(name="accountants", paths=("accounting",), without=("accounting/proof/",), count=240),
    Part(name="proof by ball arithmetic", paths=("accounting/proof",), count=60),
    Part(name="ledgers", paths=("ledger",), count=95),
    Part(name="claims", paths=("claims",), count=85),
    Part(name="sampling", paths=("sampling",), count=40),
    Part(
        name="clip",
        paths=("clip.py", "gradients/clipping.py"),
        count=40,
    ),
    Part(
        name="noise",
        paths=("noise", "gradients/noise.py"),
        count=40,
    ),
)
"""About in proportion to a part's places, but at least 40 of each; of the proof fewer than its
share, since it checks the accountants, and no claim rests on its numbers."""


@cache
def drawn(package: Path = ROOT / "src" / PACKAGE) -> Mapping[str, tuple[Mutant, ...]]:
    """The mutants of each part, by its name."""
    return {part.name: tuple(_drawn(part, package)) for part in PARTS}


def _drawn(part: Part, package: Path) -> list[Mutant]:
    sources = {file: (package / file).read_text("utf-8") for file in part.files(package)}
    found = [place for file, text in sources.items() for place in places(file, text)]
    chosen: dict[str, Mutant] = {}
    for place in sorted(found, key=_rank):
        if len(chosen) == part.count:
            break
        one = mutant(place, int(_rank(place)[-8:], 16) % len(place.ways), sources[place.file])
        if one is not None:
            chosen.setdefault(one.name, one)
    return list(chosen.values())


def _rank(place: Place) -> str:
    return hashlib.sha256(f"{SEED} {place.key}".encode()).hexdigest()
