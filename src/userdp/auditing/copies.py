"""Runs like the audited one: nothing of them is released, so that nothing is charged.

Each trains on a copy of a part of the store. A copy holds people's text: it lies in a folder that
only the operator may enter, and is deleted when its run ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import operator_folder
from userdp.core.stages import NoProgress, Progress
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import StoreSplit, TokenRows, UserStore
from userdp.data.writer import StoreWriter
from userdp.plans import Plan
from userdp.training.config import PlainPlan, RunOptions, TrainConfig
from userdp.training.loop import Watched, train

People = Iterable[tuple[bytes, TokenRows]]
"""Users of a copy, in the order of their names: name and examples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """Everything that a run like the audited one needs, but for its data.

    Args:
        store: the store that the audited run trained on.
        plan: of the audited run, with its noise where it was private.
        config: of the audited run, without evaluations and checkpoints between steps.
        place: a folder that only the operator may enter.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how far the work is.
    """

    store: UserStore
    plan: Plan | PlainPlan
    config: TrainConfig
    place: Path
    device: str
    progress: Progress

    def train(
        self,
        copy: UserStore,
        out: Path,
        *,
        progress: Progress | None = None,
        watched: Watched | None = None,
    ) -> None:
        """One run on a copy, at ``out``; see `userdp.training.loop.train`."""
        train(
            copy,
            self.plan,
            self.config,
            out=out,
            # The δ was judged when the audited run began.
            options=RunOptions(device=self.device, allow_large_delta=True),
            progress=progress or NoProgress(),
            watched=watched,
        )

    def clean(self) -> None:
        """Make the place, and remove the copies that a killed audit left there."""
        operator_folder(self.place)
        for left in self.place.glob("work-*"):
            shutil.rmtree(left, ignore_errors=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder in the place for private text, deleted at the end whatever happens."""
        self.clean()
        with TemporaryDirectory(prefix="work-", dir=self.place, ignore_cleanup_errors=True) as work:
            yield Path(work)


def texts_of(part: StoreSplit, user: int, examples: NDArray[np.int64]) -> tuple[bytes, TokenRows]:
    """Some examples of a user, under a name made of the user's row in the store."""
    return b"user%09d" % part.rows[user], part.gather(np.full(len(examples), user), examples)


def write_copy(store: UserStore, people: People, out: Path) -> UserStore:
    """A new store of these people's examples, all of them for training.

    Args:
        store: the copy has its tokenizer, length and loss mask.
        people: the users of the copy and their examples.
        out: a new folder.

    Raises:
        UseError: there are no people.
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
            tally.records_read += len(rows)
            tally.store(len(rows))
        if not tally.records_stored:
            raise UseError("nobody is left for a run of the audit: the store is too small")
        writer.finish(source={"kind": "audit", "public": False}, tally=tally)
    return UserStore.open(out)
