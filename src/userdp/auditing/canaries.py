"""Canary users, each in or out by a fair coin, and copies of a store for runs that release nothing.

A canary holds random tokens: text like nobody's, whose gradient is long (so that it is clipped to
the full norm) and far from everybody else's. Canaries go through the sampler, the collator, the
gradient engine and the ledger like anybody. So that the extra run costs about what the run did that
it audits, as many training users are left out of its copy as there are canaries.

Copies hold people's text: they lie in folders for the operator alone, and go when their run ends.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.writer import StoreWriter
from userdp.errors import UseError
from userdp.files import OPERATOR_FOLDER, operator_folder
from userdp.gradients import Units
from userdp.sampling.coins import secret_generator


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """Users who were made up, and whether each is in.

    Args:
        rows: int64 (canaries, tokens), each one's example.
        included: bool (canaries,), independent fair coins.
    """

    rows: NDArray[np.int64]
    included: NDArray[np.bool_]

    def units(self) -> Units:
        """One unit per canary, one row each."""
        count, length = self.rows.shape
        offsets = np.arange(count + 1)
        return Units.from_flat(self.rows.reshape(-1), length * offsets, offsets)


def make_canaries(store: UserStore, count: int) -> Canaries:
    """``count`` canaries of the length of the store's examples; coins tossed."""
    draw, tokens = secret_generator(), np.arange(store.meta.vocab_size)
    allowed = tokens[tokens != store.meta.end_of_text_id]
    return Canaries(
        rows=draw.choice(allowed, (count, store.meta.seq_len)),
        included=draw.random(count) < 0.5,
    )


def copy_with(store: UserStore, canaries: Canaries, out: Path, *, items: int) -> UserStore:
    """The training split of ``store`` less some users, with the canaries that are in, at ``out``.

    Who is left out, and how many, does not depend on the coins: if each canary that comes in drove
    a user out, a coin would move two users, and guesses could prove more than the mechanism's own
    ε. The held-out splits are left behind. Nothing of ``store`` changes, its ledger included.

    Args:
        store: is read.
        canaries: made for it.
        out: a new folder.
        items: how often a canary's example stands in its part of the copy: more than once under
            example sampling, where a user of many equal examples is the worst case.

    Raises:
        UseError: too few training users to make room.
    """
    split, leave = store.split(Split.TRAIN), len(canaries.rows)
    if leave > len(split.counts) // 2:
        raise UseError(
            f"{leave} canaries would take the place of more than half of the training users: the "
            "run would be another one",
            hint="give fewer --canaries",
        )
    kept = np.sort(secret_generator().permutation(len(split.counts))[leave:])
    with copied(store, out) as copy:
        for number in np.flatnonzero(canaries.included):
            tokens = np.tile(canaries.rows[number], items)
            lengths = np.full(items, canaries.rows.shape[1], dtype=np.int64)
            copy.write(b"canary%09d" % number, tokens, lengths, np.ones_like(tokens))
        for user in kept.tolist():
            copy.user(split, user, np.arange(split.counts[user]))
    return UserStore.open(out)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A store that is being written, of training examples only; users come in order of names."""

    writer: StoreWriter
    tally: Tally
    masked: bool

    def user(self, part: StoreSplit, user: int, examples: NDArray[np.int64]) -> None:
        """Write some examples of a user of ``part``, under a name made of their row."""
        rows = part.gather(np.full(len(examples), user), examples)
        self.write(b"user%09d" % part.rows[user], rows.tokens, rows.lengths, rows.targets)

    def write(
        self,
        name: bytes,
        tokens: NDArray[Any],
        lengths: NDArray[np.int64],
        targets: NDArray[Any] | None,
    ) -> None:
        """Write one user's examples, one after another; the loss counts ``targets`` of tokens."""
        self.writer.user(name)
        mask = targets.astype(np.uint8) if self.masked and targets is not None else None
        self.writer.write(Split.TRAIN, tokens, lengths, targets=mask, records=len(lengths))
        self.tally.read(len(lengths))
        self.tally.store(len(lengths))


@contextmanager
def copied(store: UserStore, out: Path) -> Iterator[Copy]:
    """A store at ``out`` with the tokenizer, length and loss mask of ``store``, to be written."""
    writer = StoreWriter.create(
        out,
        tokenizer=StoreTokenizer.load(store.tokenizer_path).with_end(store.meta.end_of_text_id),
        seq_len=store.meta.seq_len,
        loss_mask=store.meta.loss_mask,
    )
    with writer:
        copy = Copy(writer=writer, tally=Tally(), masked=store.meta.loss_mask)
        yield copy
        if not copy.tally.records_stored:
            raise UseError("nobody is left for a run of the audit: the store is too small")
        writer.finish(source={"kind": "audit", "public": False}, tally=copy.tally)
