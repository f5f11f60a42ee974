"""The files of the input: which ones a PATH stands for, opening them, and where their text is from.

``FILE.provenance.json`` beside a file of text names the ancestors of the model that wrote the text
(``userdp generate``), or the private data against which it was filtered (`userdp.data.overlap`). A
generated record also names the model that wrote it (`GENERATED`), so that generated text is noticed
even after it was mixed with other text, or converted to another format, and lost its provenance.
"""

from __future__ import annotations

import atexit
import glob
import gzip
import io
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from userdp.core.codec import decode
from userdp.core.errors import UseError, UserdpError, kind_of, warn
from userdp.core.files import read_json, working_folder

GZIP_MAGIC = b"\x1f\x8b"
_LOOK, _LEVELS = 4096, 64
_READ_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException)
READING = "raised by the input, while its records were read"
PROVENANCE = ".provenance.json"
"""How the name of a file ends that says where the text beside it is from."""
GENERATED = "generated_by"
"""The field of a generated record that names the model that wrote it."""
WRITERS = "text_written_by"
"""The fact of a source: the models whose lineage its files' provenance tells."""


def local_paths(path: str) -> list[str]:
    """A path as it is; of an address or a pipe, copies in a folder for this process only."""
    path = os.path.expanduser(path)  # noqa: PTH111 (an unknown ~name stays)
    is_pipe = Path(path).is_fifo()
    if "://" not in path and not is_pipe:
        return [path]
    copies = ExitStack()  # what a killed process left is removed by the next one
    folder = copies.enter_context(working_folder(Path(tempfile.gettempdir()), "userdp-input"))
    atexit.register(copies.close)
    if is_pipe:  # files are read twice: to tell their fields, and their records
        copy = folder / Path(path).name
        with Path(path).open("rb") as pipe, copy.open("wb") as file:
            shutil.copyfileobj(pipe, file)
        return [str(copy)]
    import fsspec
    from fsspec.implementations.cache_mapper import BasenameCacheMapper

    # Files of one name in several folders stay apart.
    options = {"cache_storage": str(folder), "cache_mapper": BasenameCacheMapper(_LEVELS)}
    try:
        found = fsspec.open_local(f"simplecache::{path}", simplecache=options)
    except (OSError, ValueError, ImportError, IndexError) as error:
        raise UseError(f"{path} cannot be read: {kind_of(error)}") from error
    return [found] if isinstance(found, str) else list(found)


def expand(paths: Sequence[str], *, suffixes: tuple[str, ...], what: str) -> tuple[Path, ...]:
    """The files that ``paths`` stand for, in their order.

    Args:
        paths: files, folders (their files and those of folders within, in the order of names) or
            glob patterns.
        suffixes: what the name of a file in a folder must end in, in lower case or capitals.
        what: the kind, for messages.

    Raises:
        UseError: nothing is there, or a folder holds no such file.
    """
    files: list[Path] = []
    for path in (path for name in paths for path in existing(name)):
        if not path.is_dir():
            files.append(path)
            continue
        there = [one for one in files_in(path) if not one.name.endswith(PROVENANCE)]
        matches = [one for one in there if is_named(one, suffixes)]
        if not matches:
            raise UseError(
                f"the folder {path} holds no files of the kind {what}",
                hint=f"files must end in one of: {', '.join(suffixes)}",
            )
        if others := len(there) - len(matches):
            warn(f"{others} of the files in {path} are not read: {what} files have other names")
        if linked := sum(one.is_symlink() and one.is_dir() for one in path.rglob("*")):
            warn(f"{linked} links to folders in {path} are not followed: name those folders too")
        files += matches
    return tuple({file.resolve(): file for file in files}.values())  # each is read once


def existing(name: str) -> list[Path]:
    """What a path or glob pattern stands for, in the order of the names.

    Raises:
        UseError: nothing is there.
    """
    found = [name] if name and Path(name).exists() else []
    if not found and glob.has_magic(name):
        found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (patterns may be absolute)
    if not found:
        raise UseError(
            f"no input at {name}: nothing is there",
            hint="for installed packages give --source docstrings, for the hub --source hf",
        )
    return [Path(one) for one in found]


def files_in(folder: Path) -> list[Path]:
    """All files below a folder by name, without hidden ones and those that editors leave."""
    return sorted(
        entry
        for entry in folder.rglob("*")
        if not any(part.startswith((".", "~$")) for part in entry.relative_to(folder).parts)
        if entry.is_file()
    )


def is_named(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file's name ends in one of ``suffixes``, in lower case or capitals."""
    return path.name.lower().endswith(suffixes)


def holds(path: Path, suffixes: tuple[str, ...]) -> bool:
    """Whether a file, or one below a folder, is named so."""
    return any(is_named(one, suffixes) for one in (files_in(path) if path.is_dir() else [path]))


@contextmanager
def read_to_the_end(place: Any) -> Iterator[None]:
    """`UseError` where a file cannot be read to its end: records would be missing uncounted."""
    try:
        yield
    # Of a ZIP with a password the library raises a bare `RuntimeError`.
    except (*_READ_ERRORS, RuntimeError) as error:
        if not isinstance(place, Path) or isinstance(error, UserdpError):
            error.add_note(READING)
            raise
        words = kind_of(error)
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            words = "the gzip stream is truncated or damaged"
        raise UseError(
            f"{place} cannot be read to its end: {words}; what follows would be missing uncounted",
            hint="copy the file again, or cut it where it is whole",
        ) from error


def opened(path: Path) -> tuple[IO[bytes], Callable[[], int]]:
    """The bytes of a file, decompressed if it is gzip, and how many of the file's own are read."""
    raw = path.open("rb", buffering=0)  # without a buffer, so that its place is the file's own
    zipped = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    raw.seek(0)
    content: Any = gzip.GzipFile(fileobj=raw, mode="rb") if zipped else raw
    return io.BufferedReader(content, 2**20), raw.tell


def opened_text(path: Path) -> tuple[IO[bytes], Callable[[], int]]:
    """`opened`; `UseError` if the file is binary, and so no text."""
    if b"\0" in beginning(path):
        raise UseError(f"{path} is a binary file", hint="expected text, plain or gzip")
    return opened(path)


def beginning(path: Path) -> bytes:
    """The first bytes of a file, decompressed if it is gzip; nothing if it cannot be read."""
    try:
        content, _ = opened(path)
        with content:
            return content.read(_LOOK)
    except _READ_ERRORS:
        return b""


def files_facts(files: Sequence[Path]) -> dict[str, Any]:
    """The number of files, and their bytes as they lie on disk."""
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def provenance_of(text: Path) -> Path:
    """The file beside a text that says where it is from."""
    return text.parent / f"{text.name}{PROVENANCE}"


def provenance(paths: Iterable[Path]) -> dict[str, Any]:
    """The provenance of files of text, or of folders that stand for one, as facts of a source."""
    known = [_beside(path) for path in paths]
    facts = {
        "filtered_against_private": [one for one in known if "private_data" in one],
        "text_lineage": [one["lineage"] for one in known if "lineage" in one],
        WRITERS: [one[GENERATED] for one in known if GENERATED in one],
    }
    return {name: value for name, value in facts.items() if value}


def with_lost(facts: dict[str, Any], written_by: set[str]) -> dict[str, Any]:
    """Facts of a source, and whether some of its records name a model of unknown lineage."""
    kept = {name: value for name, value in facts.items() if name != WRITERS}
    known = written_by <= set(facts.get(WRITERS, ()))
    return kept if known else {**kept, "text_of_unknown_model": True}


def _beside(path: Path) -> dict[str, Any]:
    """The provenance beside a file, which may have been packed or unpacked since."""
    for name in (path.name, f"{path.name}.gz", path.name.removesuffix(".gz")):
        beside = provenance_of(path.parent / name)
        if beside.is_file():
            said = read_json(beside, what="the provenance of a text")
            for field, hint in ((GENERATED, str), ("lineage", dict[str, Any])):
                if field in said:
                    decode(hint, said[field], what=f"{field} in {beside}")
            return said
    return {}
