"""The faults of ``planted.toml``, and how one of them gets into a copy of the source."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "planted.toml"
PACKAGE = "userdp"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One change of the source that breaks an invariant.

    Args:
        name: of the fault; in lower case, with hyphens.
        invariant: the number of the invariant that it breaks (docs/invariants.md).
        what: is wrong, in one sentence.
        file: below ``src/userdp``.
        old: what stands there, once.
        new: what is put in its place.
        tests: files or single tests, as pytest takes them. Of these only the ones run that name the
            invariant, or bear one of ``pitfalls``.
        pitfalls: numbers of pitfalls (docs/concepts/pitfalls.md) whose tests may catch it too.
        blind: it was written from the source, before its author had read any test.
    """

    name: str
    invariant: int
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    pitfalls: tuple[int, ...] = ()
    blind: bool = False

    def planted(self, source: str) -> str:
        """``source`` with the fault in it.

        Raises:
            ValueError: ``old`` is not there, or not once, or the result is no Python.
        """
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: its old text occurs {found} times in {self.file}")
        text = source.replace(self.old, self.new)
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} would be no Python: {error}") from error
        return text

    def digest(self, source: str) -> str:
        """What its verdict is a function of: the source, the fault, and the files of its tests.

        Args:
            source: of `digest_of_source`.
        """
        hashed = hashlib.sha256(f"{source} {sorted(asdict(self).items())!r}".encode())
        for path in sorted({ROOT / test.partition("::")[0] for test in self.tests}):
            hashed.update(path.read_bytes())
        return hashed.hexdigest()[:16]


def digest_of_source(folder: Path = ROOT / "src") -> str:
    """SHA-256 of every module of the package, with its place."""
    hashed = hashlib.sha256()
    for path in sorted((folder / PACKAGE).rglob("*.py")):
        hashed.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return hashed.hexdigest()


def digest_of_text(text: str) -> str:
    """The first 16 digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_faults(path: Path = LIST) -> list[Fault]:
    """All faults, in the order of the file."""
    entries = tomllib.loads(path.read_text("utf-8"))["fault"]
    return [
        Fault(
            **{
                key: tuple(value) if isinstance(value, list) else value
                for key, value in one.items()
            }
        )
        for one in entries
    ]


def names_it(name: str, pitfalls: Iterable[int], fault: Fault) -> bool:
    """Whether a test of this name, which bears these pitfalls, is about what ``fault`` breaks.

    >>> fault = Fault(name="f", invariant=1, what="", file="", old="", new="", tests=())
    >>> names_it("test_invariant_1_holds", (), fault), names_it("test_invariant_13_x", (), fault)
    (True, False)
    """
    named = re.search(rf"invariant_{fault.invariant}(?!\d)", name) is not None
    return named or not set(fault.pitfalls).isdisjoint(pitfalls)


def forget_compiled(path: Path) -> None:
    """Remove the compiled module of a file: one written within the same second may pass for it."""
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
