"""A fast check of a store's bytes: the sizes of all files, and blocks of them drawn at random.

`userdp.data.verify` reads every byte, which takes minutes for a large store; this check takes less
than half a second for a store of any size, so that it stands before every charge: people must not
pay for a model of damaged text.

``blocks.arrow`` lies beside the index of its generation, and holds the first `DIGEST_BYTES` of the
SHA-256 of every `BLOCK` bytes of every other file that ``meta.json`` names, file after file in the
order of their names. Stores that were prepared before it existed have none: of them, only sizes
are checked.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import SystemRandom
from typing import IO, Any

import pyarrow as pa

from userdp.data import format as layout
from userdp.data.files import checksum, read_table, write_arrow
from userdp.data.meta import StoreMeta, read_meta
from userdp.data.store import UserStore
from userdp.errors import UseError, kind_of

BLOCK = 2**18
DIGEST_BYTES = 16
_KINDS = {"digest": pa.binary(DIGEST_BYTES)}
MOST_BLOCKS = 128
"""32 MiB: a smaller store is read whole. Damage to a share f of all blocks is found with
probability 1 - (1 - f)^128: 0.998 for a twentieth."""
_SECONDS = 0.3
"""Reading stops then, on a disk that takes long to find 128 places."""
_UNKNOWN = bytes(DIGEST_BYTES)
"""Stands for a block of a file that was written before digests of blocks were kept."""


def digested(path: Path) -> tuple[dict[str, Any], bytes]:
    """``{"bytes": size, "sha256": hex digest}`` of a file and its blocks' digests, in one pass."""
    whole, parts = hashlib.sha256(), bytearray()
    with path.open("rb") as file:
        for block in _blocks(file):
            whole.update(block)
            parts += _digest(block)
        return {"bytes": file.tell(), "sha256": whole.hexdigest()}, bytes(parts)


def digests_of(content: bytes) -> bytes:
    """The digests of the blocks of a file that holds ``content``."""
    return b"".join(map(_digest, _blocks(io.BytesIO(content))))


def seal(
    folder: Path,
    generation: Path,
    kept: Mapping[str, Any],
    new_files: Iterable[Path],
    *,
    known: Mapping[str, bytes],
) -> dict[str, Any]:
    """Digest a generation's new files, and write the digests of the blocks of all of its files.

    Args:
        folder: of the store.
        generation: of the index, relative to the store; written but for ``blocks.arrow``.
        kept: facts of the files that stay, by name.
        new_files: relative to the store; written.
        known: digests of the blocks of files that stay, as far as they are known, by name.

    Returns:
        Facts of all files, for ``meta.json``.
    """
    files, digests = dict(kept), dict(known)
    for name in map(str, new_files):
        files[name], digests[name] = digested(folder / name)
    blocks = generation / layout.BLOCKS
    write_blocks(folder / blocks, files, digests)
    files[str(blocks)] = checksum(folder / blocks)
    return files


def write_blocks(path: Path, files: Mapping[str, Any], digests: Mapping[str, bytes]) -> None:
    """Write ``blocks.arrow``.

    Args:
        path: its place; it must not exist yet.
        files: those that ``meta.json`` will name, but for ``blocks.arrow`` itself.
        digests: of their blocks, by name; of a file that is not there, none is known.
    """
    rows = b"".join(
        digests.get(name, _UNKNOWN * count) for name, count in _counts(files, without=path)
    )
    column = pa.Array.from_buffers(
        _KINDS["digest"], len(rows) // DIGEST_BYTES, [None, pa.py_buffer(rows)]
    )
    write_arrow(path, {"digest": column})


def read_blocks(store: Path, meta: StoreMeta) -> dict[str, bytes]:
    """The digests of the blocks of each file, as far as they are known."""
    name = _place(meta)
    if name not in meta.files:
        return {}
    column = read_table(store / name, _KINDS).column("digest")
    digests, at = {}, 0
    for file, count in _counts(meta.files, without=Path(name)):
        digests[file] = b"".join(column.slice(at, count).to_pylist())
        at += count
    return digests


def require_intact(store: UserStore) -> None:
    """`UseError` if the store's bytes fail the fast check; called before anything is charged.

    Raises:
        UseError: a file is missing, is shorter or longer than it was, or a block that was drawn is
            not what was written; or another store lies there now.
    """
    meta, now = store.meta, read_meta(store.path)
    if now.generation == meta.generation and now.store_id != meta.store_id:
        raise UseError(
            f"another store lies at {store.path} than the one that was opened: its people would be "
            "charged for what others wrote",
            hint="open it again",
        )
    # Where somebody was erased, or people were appended twice, since the store was opened, files
    # that it was opened with are gone by right, perhaps while they were looked at: then those are
    # asked for that lie there now. The bytes of people's text are among them as they were.
    while (wrong := _first_difference(store.path, meta)) is not None:
        now = read_meta(store.path)
        if now.generation == meta.generation:
            raise refusal(store.path, wrong)
        meta = now


def _first_difference(path: Path, meta: StoreMeta) -> str | None:
    """What is not as ``meta`` says; None where everything is that was looked at."""
    try:
        return next(_differences(path, meta), None)
    except UseError as error:
        return error.message
    except OSError as error:
        return kind_of(error)


def refusal(path: Path, wrong: str) -> UseError:
    """The refusal of a store of which ``wrong`` says what differs."""
    return UseError(
        f"the store at {path} is not what was written: {wrong}. People would be charged for a "
        "model of damaged text, so nothing was charged",
        hint=f"`userdp verify {path}` names all that differs; prepare it again from its source "
        "with --overwrite, which keeps its ledger",
    )


def _differences(path: Path, meta: StoreMeta) -> Iterator[str]:
    names = sorted(meta.files)
    ids = next((name for name in names if name.endswith(layout.USER_IDS)), None)
    handed_on = ids is not None and not (path / ids).exists()  # a store works without them
    for name in names:
        if handed_on and name == ids:
            continue
        file, size = path / name, meta.files[name]["bytes"]
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != size:
            yield f"{name} has {file.stat().st_size} bytes, and had {size}"
    if (table := _place(meta)) in meta.files:
        yield from _other_blocks(path, meta, table, skip=ids if handed_on else None)


def _other_blocks(path: Path, meta: StoreMeta, table: str, *, skip: str | None) -> Iterator[str]:
    """Blocks, of those drawn, that are not what was written."""
    column = read_table(path / table, _KINDS).column("digest")
    counts = _counts(meta.files, without=Path(table))
    total = sum(count for _, count in counts)
    if len(column) != total:
        yield f"{table} holds the digests of another number of blocks than there are"
        return
    starts, at = [], 0
    for name, count in counts:
        starts.append((at, at + count, name))
        at += count
    end = time.monotonic() + _SECONDS
    for block in sorted(SystemRandom().sample(range(total), min(total, MOST_BLOCKS))):
        while starts[0][1] <= block:
            starts.pop(0)
        first, _, name = starts[0]
        written = column[block].as_py()
        if name == skip or written == _UNKNOWN:
            continue
        with (path / name).open("rb") as file:
            file.seek((block - first) * BLOCK)
            if _digest(file.read(BLOCK)) != written:
                yield f"{name} has other content"
        if time.monotonic() > end:
            return


def _counts(files: Mapping[str, Any], *, without: Path) -> list[tuple[str, int]]:
    """How many blocks each file has, in order of names."""
    return [
        (name, -(-facts["bytes"] // BLOCK))
        for name, facts in sorted(files.items())
        if Path(name).name != without.name
    ]


def _place(meta: StoreMeta) -> str:
    return f"{layout.INDEX}/{layout.segment_name(meta.generation)}/{layout.BLOCKS}"


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def _digest(block: bytes) -> bytes:
    return hashlib.sha256(block).digest()[:DIGEST_BYTES]
