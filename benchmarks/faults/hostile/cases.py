"""A case: one file of a target's world, and what it holds in place of its own content."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One file of a world, changed.

    Args:
        file: its place below the world's folder.
        content: what it holds now.
    """

    file: str
    content: bytes

    def encoded(self, files: Sequence[str]) -> bytes:
        """As bytes, for a fuzzer that knows nothing else; the inverse of `decoded`."""
        return bytes([files.index(self.file)]) + self.content


def decoded(data: bytes, files: Sequence[str]) -> Case:
    """A case from any bytes: the first one chooses the file."""
    return Case(file=files[data[0] % len(files) if data else 0], content=data[1:])


class Target(ABC):
    """A world of files, and all that a user has to read it with.

    Readers run in the world's folder, beside which there is an empty folder ``out`` to write to.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    """What is read, for the table."""
    follows_paths: ClassVar[bool] = False
    """Paths in its files are meant to be followed: they are an operator's own."""
    starts: ClassVar[frozenset[str]] = frozenset()
    """Programs that it may start."""

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Write the world, with nothing wrong in it."""

    @abstractmethod
    def read(self, folder: Path) -> None:
        """Read all of it, as users do.

        Raises:
            UserdpError: it is refused.
            AssertionError: what was read is wrong.
        """

    def files(self, folder: Path) -> list[str]:
        """The files of the world that a case may change."""
        paths = (path for path in folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(folder).as_posix() for path in paths)

    def mend(self, folder: Path, file: str) -> None:
        """Make checksums fit what was changed: whoever changes files on purpose does that too."""
        return


class World:
    """The files of a target, made once and copied for each case."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._target, self._sound, self._copy = target, folder / "sound", folder / "case"
        self._sound.mkdir(parents=True)
        target.make(self._sound)
        self.files = target.files(self._sound)

    def seeds(self) -> list[Case]:
        """Every file as it is."""
        return [Case(file=name, content=(self._sound / name).read_bytes()) for name in self.files]

    def with_case(self, case: Case | None) -> Path:
        """A fresh copy of the world with ``case`` in it; beside it an empty folder ``out``."""
        for folder in (self._copy, self._copy.with_name("out")):
            shutil.rmtree(folder, ignore_errors=True)
        self._copy.with_name("out").mkdir()
        shutil.copytree(self._sound, self._copy, symlinks=True)
        if case is not None:
            (self._copy / case.file).parent.mkdir(parents=True, exist_ok=True)
            (self._copy / case.file).write_bytes(case.content)
            self._target.mend(self._copy, case.file)
        return self._copy
