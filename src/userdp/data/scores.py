"""A number per example of a split (its perplexity), in a file of its own beside the store.

``training`` computes scores, with a model of public data; `selections` reads them. The file is an
Arrow IPC file with one column ``score``, float32, one row per example, in the order of users and
of examples within each; it names the content of the store that it belongs to.

Operator-only: scores are exact functions of private records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.data.files import read_table
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import UseError, kind_of
from userdp.files import OPERATOR_FILE, digest_of_file, whole_file

_CONTENT, _SPLIT, _LINEAGE = b"content_sha256", b"split", b"lineage"
_FIRST = b"written_as"
"""In a file that lost an erased person's rows: the digest of the file that was written first."""


def write_scores(
    path: Path,
    store: UserStore,
    blocks: Iterator[NDArray[np.float32]],
    split: Split = Split.TRAIN,
    *,
    lineage: str = "",
) -> int:
    """Write the scores of a split, block after block; return how many they were.

    Args:
        path: of the new file; mode 0600; written whole or not at all.
        store: whose examples they are.
        blocks: float32, together one number per example of ``split`` in its order. NaN where a
            score could not be computed.
        split: which.
        lineage: what the model descends from that computed them, as JSON (`userdp.claims.lineage`).

    Raises:
        UseError: there are more or fewer scores than examples.
    """
    facts = {_CONTENT: store.meta.content_sha256.encode(), _SPLIT: str(split).encode()}
    facts[_LINEAGE] = lineage.encode()
    schema = pa.schema([("score", pa.float32())], metadata=facts)
    written = 0
    with whole_file(path, mode=OPERATOR_FILE) as sink:
        with pa.ipc.new_file(sink, schema) as file:
            for block in blocks:
                column = pa.array(block, pa.float32())
                file.write_batch(pa.record_batch([column], schema=schema))
                written += len(block)
        examples = int(store.split(split).counts.sum())
        if written != examples:
            raise UseError(f"another number of scores came for the examples of {split}")
    return written


def read_scores(path: Path, store: UserStore, split: Split = Split.TRAIN) -> NDArray[np.float32]:
    """The scores of a split: float32 (examples,).

    Raises:
        UseError: the file is none of scores, or belongs to another store or split; scores of other
            text would choose the wrong examples.
    """
    try:
        table = _table(path)
    except OSError as error:
        raise UseError(f"cannot read the scores in {path}: {error.strerror}") from error
    facts = table.schema.metadata or {}
    expected = {_CONTENT: store.meta.content_sha256.encode(), _SPLIT: str(split).encode()}
    if {key: facts.get(key) for key in expected} != expected:
        raise UseError(
            f"the scores in {path} are not those of split {split} of the store at {store.path}",
            hint="compute them again for this store",
        )
    scores: NDArray[np.float32] = table.column("score").to_numpy()
    return scores


def leave_out_rows(path: Path, rows: Mapping[str, Sequence[int]], *, was: str, now: str) -> None:
    """Take an erased person's rows out of a file of scores; done twice, it is done once.

    A file of scores of an earlier state of the store is removed: nothing can read it any more. What
    is no file of scores stays as it is: something else was put there, or it was damaged.

    Args:
        path: of the file; nothing is done where none is.
        rows: by split, where the person's rows begin, and how many they are.
        was: the store's content hash when they were in it.
        now: its content hash without them.

    Raises:
        OSError: the disk refused.
    """
    if not path.exists():
        return
    try:
        table = _table(path)
    except UseError:  # whatever it holds, the scan after the erasure tells of it
        return
    facts = dict(table.schema.metadata or {})
    if facts.get(_CONTENT) == now.encode():
        return
    if facts.get(_CONTENT) != was.encode():
        path.unlink()
        return
    first, count = rows[facts[_SPLIT].decode()]
    kept = np.delete(table.column("score").to_numpy(), np.s_[first : first + count])
    facts |= {_CONTENT: now.encode(), _FIRST: digest_of_scores(path).encode()}
    schema = pa.schema([("score", pa.float32())], metadata=facts)
    with whole_file(path, mode=OPERATOR_FILE) as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(kept, pa.float32())], schema=schema))


def _table(path: Path) -> pa.Table:
    """What a file of scores holds; see `read_table`."""
    try:
        table = read_table(path, {"score": pa.float32()})
    except UseError as error:
        raise UseError(f"{path} is not a file of scores: {error.message}") from error
    if (table.schema.metadata or {}).get(_SPLIT) not in [str(split).encode() for split in Split]:
        raise UseError(f"{path} is not a file of scores: it names no split")
    return table


def digest_of_scores(path: Path) -> str:
    """The SHA-256 of a file of scores, as it was before anybody was erased from it.

    So a run that selects by scores goes on after an erasure with the rows that are left.
    """
    with suppress(UseError, OSError):  # not a file of scores: whoever reads it says so
        facts = _table(path).schema.metadata
        if _FIRST in facts:
            return str(facts[_FIRST].decode())
    return digest_of_file(path)


def lineage_of_scores(path: Path) -> str:
    """What the model descends from that computed the scores in a file; empty if it does not say.

    Raises:
        UseError: the file is none of scores.
    """
    try:
        metadata = _table(path).schema.metadata
    except OSError as error:
        raise UseError(f"{path} is not a file of scores: {kind_of(error)}") from error
    return bytes(metadata.get(_LINEAGE, b"")).decode()
