"""A number per example of a split (its perplexity), in a file of its own beside the store.

``training`` computes scores, with a model of public data; `selection` reads them. The file is an
Arrow IPC file with one column ``score``, float32, one row per example, in the order of users and
of examples within each; it names the content of the store that it belongs to. An erasure removes
the files of scores of its store: they hold the person's, and no other state of it reads them.

Operator-only: scores are exact functions of private records.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from userdp.core.errors import UseError, kind_of
from userdp.data.arrow_files import numbers, read_arrow, write_arrow
from userdp.data.splits import Split
from userdp.data.user_store import UserStore

_SCORES = pa.schema([("score", pa.float32())])
_CONTENT, _SPLIT, _LINEAGE = b"content_sha256", b"split", b"lineage"


def write_scores(
    path: Path,
    store: UserStore,
    scores: NDArray[np.float32],
    split: Split = Split.TRAIN,
    *,
    lineage: str = "",
) -> None:
    """Write the scores of a split.

    Args:
        path: of the new file; mode 0600; written whole or not at all.
        store: whose examples they are.
        scores: float32, one number per example of ``split`` in its order. NaN where a score could
            not be computed.
        split: which.
        lineage: what the model descends from that computed them, as JSON (`userdp.claims.lineage`).

    Raises:
        UseError: there are more or fewer scores than examples.
    """
    if len(scores) != int(store.split(split).counts.sum()):
        raise UseError(f"another number of scores came for the examples of {split}")
    facts = {_CONTENT: store.meta.content_sha256, _SPLIT: str(split), _LINEAGE: lineage}
    columns = _SCORES.with_metadata({key: value.encode() for key, value in facts.items()})
    write_arrow(path, pa.record_batch([pa.array(scores, pa.float32())], columns))


def read_scores(path: Path, store: UserStore, split: Split = Split.TRAIN) -> NDArray[np.float32]:
    """The scores of a split: float32 (examples,).

    Raises:
        UseError: the file is none of scores, or belongs to another store or split; scores of other
            text would choose the wrong examples.
    """
    scores, facts = _read(path)
    if (facts[_CONTENT].decode(), facts[_SPLIT].decode()) != (store.meta.content_sha256, split):
        raise UseError(
            f"the scores in {path} are not those of split {split} of the store at {store.path}",
            hint="compute them again for this store",
        )
    return scores


def is_scores(path: Path) -> bool:
    """Whether a file of scores lies there, and not something else that was put there since."""
    with suppress(UseError):
        _read(path)
        return True
    return False


def _read(path: Path) -> tuple[NDArray[np.float32], dict[bytes, bytes]]:
    """What a file of scores holds, and says of itself; `UseError` if it cannot be read."""
    try:
        rows = read_arrow(path, _SCORES)
    except OSError as error:
        raise UseError(f"cannot read the scores in {path}: {kind_of(error)}") from error
    except UseError as error:
        raise UseError(f"{path} is not a file of scores: {error.message}") from error
    facts = dict(rows.schema.metadata or {})
    if not {_CONTENT, _SPLIT, _LINEAGE} <= facts.keys():
        raise UseError(f"{path} is not a file of scores: it names no store")
    return numbers(rows["score"]), facts


def lineage_of_scores(path: Path) -> str:
    """What the model descends from that computed the scores in a file; empty if it does not say.

    Raises:
        UseError: the file is none of scores.
    """
    return _read(path)[1][_LINEAGE].decode()
