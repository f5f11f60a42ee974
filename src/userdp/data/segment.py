"""One segment of a store, open for reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from userdp.data import format as layout
from userdp.data.files import read_columns
from userdp.data.meta import StoreMeta
from userdp.errors import UseError

KINDS = {layout.TOKENS: "token", layout.OFFSETS: "offset", layout.TARGETS: "target"}
"""The name of the one column of each file."""
OFFSET, TARGET = "<i8", "u1"
"""Types of the numbers in a segment; that of tokens is the store's."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The columns of a segment, over memory maps.

    Args:
        tokens: uint16 or uint32, flat.
        offsets: int64 (examples + 1,): where each example begins among the tokens.
        targets: uint8, parallel to ``tokens``; None where the store has no loss mask.
    """

    tokens: NDArray[Any]
    offsets: NDArray[np.int64]
    targets: NDArray[np.uint8] | None

    @classmethod
    def open(cls, store: Path, meta: StoreMeta, number: int) -> Self:
        """Segment ``number`` of a store.

        Raises:
            OSError: a file of it is not there.
            UseError: one is damaged.
        """
        folder = store / layout.SEGMENTS / meta.segment_folder(number)
        tokens = _column(folder / layout.TOKENS, f"<{np.dtype(meta.token_dtype).str[1:]}")
        targets = _column(folder / layout.TARGETS, TARGET) if meta.loss_mask else None
        if targets is not None and len(targets) != len(tokens):
            raise UseError(
                f"segment {number} has another number of {layout.TARGETS} than of tokens"
            )
        return cls(tokens, offsets_of(store, meta, number), targets)


def offsets_of(store: Path, meta: StoreMeta, number: int) -> NDArray[np.int64]:
    """Where the examples of segment ``number`` begin; int64 (examples + 1,)."""
    folder = store / layout.SEGMENTS / meta.segment_folder(number)
    offsets = _column(folder / layout.OFFSETS, OFFSET)
    if not len(offsets):
        raise UseError(f"segment {number} does not say where its first example begins")
    return offsets


def _column(path: Path, kind: str) -> NDArray[Any]:
    (values,) = read_columns(path, {KINDS[path.name]: kind}).values()
    return values
