"""A ZIP of text files by folder: its topmost folders are the users, each file is a record.

Expected input, as ``cd texts; zip -r ../texts.zip *`` makes it::

    ana/2024/diary.txt
    ben/notes.md

Files are read in the order of their names; hidden ones, and those that do not end as documents do
(`userdp.data.sources.folder`), are left out. A file outside all folders is nobody's, and counted.
"""

from __future__ import annotations

import codecs
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from userdp.data.progress import Progress
from userdp.data.records import Drop, Record
from userdp.data.sources.base import FileSource, SourceOptions, expand
from userdp.data.sources.folder import SUFFIXES
from userdp.data.sources.rows import record_of
from userdp.errors import UseError, kind_of


def build(paths: list[str], options: SourceOptions) -> _Archive:
    """The source for archives, folders of them and patterns ``paths``."""
    return _Archive(paths=expand(paths, suffixes=(".zip",), what="ZIP archives"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Archive(FileSource):
    """One record per file of the archives."""

    paths: tuple[Path, ...]

    kind = "zip"

    def entries(self, progress: Progress) -> Iterator[Record | Drop]:
        """The documents; see `Source.entries`."""
        order = count()
        for path, _ in self.each_file(progress):
            try:
                with zipfile.ZipFile(path) as archive:
                    for name in sorted(filter(_is_document, archive.namelist())):
                        top, slash, _ = name.partition("/")
                        text = archive.read(name).removeprefix(codecs.BOM_UTF8)
                        yield record_of(top if slash else "", text, next(order))
            # Without its password the library raises a bare `RuntimeError`.
            except (zipfile.BadZipFile, OSError, zlib.error, RuntimeError) as error:
                raise UseError(
                    f"{path} cannot be read to its end: {kind_of(error)}",
                    hint="unpack it by a program of your own, and name the folder",
                ) from error


def _is_document(name: str) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
    return name.lower().endswith(SUFFIXES) and not hidden
