"""A folder of books or documents: each file is one unit, its text one record.

Expected input::

    books/austen/emma.txt
    books/melville/moby-dick.txt
    notes.md

Files ending in ``.txt``, ``.text``, ``.md`` and the like, looked for deeply, in the order of their
names; the user is the file's path within the folder (BookSum: one book, one unit, as in Chua et
al. 2024, Section 3). UTF-8; a file that is not is dropped and counted.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import Source, SourceOptions, content_of, expand
from userdp.data.sources.rows import record_of

SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".org")


def build(paths: list[str], options: SourceOptions) -> _Folder:
    """The source for folders and files ``paths``."""
    expand(paths, suffixes=SUFFIXES, what="documents")
    return _Folder(paths=tuple(Path(name) for name in paths))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Folder(Source):
    """One record per file."""

    paths: tuple[Path, ...]

    kind = "folder"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.files)

    def facts(self) -> dict[str, Any]:
        """The number of files."""
        return {"files": len(self.files)}

    @property
    def files(self) -> list[Path]:
        """What is read."""
        return [file for _, file in self._files()]

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The documents; see `Source.entries`."""
        done = 0
        for order, (unit, file) in enumerate(self._files()):
            content = content_of(file, self.paths)
            text = content.removeprefix(codecs.BOM_UTF8)
            yield record_of(unit, text, order)  # a file name may be no UTF-8
            done += len(content)
            progress.at(done)

    def _files(self) -> list[tuple[str, Path]]:
        unit_of: dict[Path, str] = {}
        for path in self.paths:
            for file in expand([str(path)], suffixes=SUFFIXES, what="documents"):
                unit = file.relative_to(path) if path.is_dir() else Path(file.name)
                unit_of.setdefault(file, unit.as_posix())
        units = list(unit_of.values())
        if len(set(units)) < len(units):  # of several folders with the same names inside
            return [(file.as_posix(), file) for file in unit_of]
        return [(unit, file) for file, unit in unit_of.items()]
