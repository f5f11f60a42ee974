"""Documents: a folder of books, and a ZIP of text files by folder.

**folder.** Each file is one user, its text one record::

    books/austen/emma.txt
    books/melville/moby-dick.txt
    notes.md

Files ending in ``.txt``, ``.text``, ``.md`` and the like, looked for deeply, in the order of their
names; the user is the file's path within the folder (BookSum: one book, one unit, as in Chua et
al. 2024, Section 3). UTF-8; a file that is not is dropped and counted.

**zip.** The topmost folders are the users, each file is a record, as of
``cd texts; zip -r ../texts.zip *``::

    ana/2024/diary.txt
    ben/notes.md

Files are read in the order of their names; hidden ones, and those that do not end as documents do,
are left out. A file outside all folders is nobody's, and counted. An archive that was written to
twice may hold two files of one name: both are records.
"""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Iterator
from pathlib import Path

from userdp.data.sources.input_files import expand, files_facts
from userdp.data.sources.rows_to_records import record_of
from userdp.data.sources.source import At, Entry, Source, SourceOptions

SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".org")


def open_folder(paths: list[str], options: SourceOptions) -> Source:
    """The source for folders and files ``paths``."""
    files, (one, *more) = expand(paths, suffixes=SUFFIXES, what="folder"), map(Path, paths)
    # A name hangs on the form of the call, never on which other documents there are.
    inside = None if more or not one.exists() else one if one.is_dir() else one.parent
    units = {file: file.relative_to(inside) if inside else file for file in files}

    def read(path: Path, at: At) -> Iterator[Entry]:
        yield record_of(units[path].as_posix(), path.read_bytes().removeprefix(codecs.BOM_UTF8))

    return Source(kind="folder", places=files, read=read, facts=files_facts(files))


def read_archive(path: Path, options: SourceOptions, at: At) -> Iterator[Entry]:
    """A record for each document in a ZIP."""
    with zipfile.ZipFile(path) as archive:
        entries = sorted(archive.infolist(), key=lambda one: one.filename)
        for entry in (one for one in entries if _is_document(one.filename)):
            top, slash, _ = entry.filename.partition("/")
            yield record_of(top if slash else "", archive.read(entry).removeprefix(codecs.BOM_UTF8))


def _is_document(name: str) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
    return name.lower().endswith(SUFFIXES) and not hidden
