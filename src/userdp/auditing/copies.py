"""Copies of a part of a store, for runs that release nothing. They hold people's text."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.writer import StoreWriter
from userdp.files import OPERATOR_FOLDER, operator_folder


def clean_folder(place: Path) -> None:
    """Make ``place`` for the operator only, and remove private text that a killed audit left."""
    operator_folder(place)
    for left in place.glob("work-*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """A new folder in ``place`` for private text, which goes whatever happens."""
    clean_folder(place)
    work = place / f"work-{secrets.token_hex(4)}"
    work.mkdir(mode=OPERATOR_FOLDER)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def writer_like(store: UserStore, out: Path) -> StoreWriter:
    """The writer of a store at ``out`` with the tokenizer, length and loss mask of ``store``."""
    return StoreWriter.create(
        out,
        tokenizer=StoreTokenizer.load(store.tokenizer_path).with_end(store.meta.end_of_text_id),
        seq_len=store.meta.seq_len,
        loss_mask=store.meta.loss_mask,
    )


def copy_user(
    writer: StoreWriter,
    part: StoreSplit,
    user: int,
    examples: NDArray[np.int64],
    tally: Tally,
) -> None:
    """Write some of a user's examples as training examples, under a name made of their row.

    Args:
        writer: of the copy; users come in order of their rows in the whole store.
        part: of the store that is copied.
        user: position in ``part``.
        examples: int64 (examples,), at least one.
        tally: counts them.
    """
    rows = part.gather(np.full(len(examples), user), examples)
    write_user(
        writer, b"user%09d" % part.rows[user], rows.tokens, rows.lengths, rows.targets, tally
    )


def write_user(
    writer: StoreWriter,
    name: bytes,
    tokens: NDArray[Any],
    lengths: NDArray[np.int64],
    targets: NDArray[Any] | None,
    tally: Tally,
) -> None:
    """Write one user's training examples, one after another.

    Args:
        writer: of the copy.
        name: of the user; users come in the order of their names.
        tokens: whole numbers (sum of ``lengths``,).
        lengths: int64 (examples,).
        targets: which tokens the loss counts, as ``tokens``; None in a store without a loss mask.
        tally: counts them.
    """
    count = len(lengths)
    writer.user(name)
    mask = None if targets is None else targets.astype(np.uint8)
    writer.write(Split.TRAIN, tokens, lengths, targets=mask, records=count)
    tally.read(count)
    tally.store(count)
