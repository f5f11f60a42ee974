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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FOLDER, operator_folder
from userdp.data.progress import Progress
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, TokenRows, UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.writer import StoreWriter
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.sampling.coins import secret_generator
from userdp.training.config import PlainPlan, TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Runs like an audited one, of which nothing is released and nothing charged.

    Args:
        store: whose people trained.
        plan: the audited run's; its noise too, where it was private.
        config: the audited run's, without a selection by scores, which are another store's.
        place: a folder for the operator alone.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how far the work is.
    """

    store: UserStore
    plan: Plan | PlainPlan
    config: TrainConfig
    place: Path
    device: str
    progress: Progress


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


People = Iterable[tuple[bytes, TokenRows]]
"""Users of a copy, in the order of their names: name and examples."""


def texts_of(part: StoreSplit, user: int, examples: NDArray[np.int64]) -> tuple[bytes, TokenRows]:
    """Some examples of a user of ``part``, under a name made of their row."""
    return b"user%09d" % part.rows[user], part.gather(np.full(len(examples), user), examples)


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
    split, (leave, length) = store.split(Split.TRAIN), canaries.rows.shape
    if leave > len(split.counts) // 2:
        raise UseError(
            f"{leave} canaries would take the place of more than half of the training users: the "
            "run would be another one",
            hint="give fewer --canaries",
        )
    kept = np.sort(secret_generator().permutation(len(split.counts))[leave:])
    offsets = length * np.arange(items + 1)
    counted = np.ones(items * length, dtype=np.bool_) if store.meta.loss_mask else None
    made = (
        (b"canary%09d" % one, TokenRows(np.tile(canaries.rows[one], items), offsets, counted))
        for one in np.flatnonzero(canaries.included)
    )
    people = (texts_of(split, user, np.arange(split.counts[user])) for user in kept.tolist())
    return write_copy(store, chain(made, people), out)


def write_copy(store: UserStore, people: People, out: Path) -> UserStore:
    """A store of these people at ``out``: training examples only, prepared as ``store`` is.

    Args:
        store: whose tokenizer, length and loss mask the copy has.
        people: who is in it.
        out: a new folder.

    Raises:
        UseError: there is nobody.
    """
    meta, tally = store.meta, Tally()
    with StoreWriter.create(
        out,
        tokenizer=StoreTokenizer.load(store.tokenizer_path).with_end(meta.end_of_text_id),
        seq_len=meta.seq_len,
        loss_mask=meta.loss_mask,
    ) as writer:
        for name, rows in people:
            targets = None if rows.targets is None else rows.targets.astype(np.uint8)
            writer.write(
                name, Split.TRAIN, rows.tokens, rows.lengths, targets=targets, records=len(rows)
            )
            tally.read(len(rows))
            tally.store(len(rows))
        if not tally.records_stored:
            raise UseError("nobody is left for a run of the audit: the store is too small")
        writer.finish(source={"kind": "audit", "public": False}, tally=tally)
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
