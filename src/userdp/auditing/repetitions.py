r"""Runs like the audited one, and how likely such reference runs find a text.

Each run trains on a copy of a part of the store. A copy holds people's text: it lies in a folder
that only the operator may enter, and is deleted when its run ends. Nothing of the runs is released,
so that nothing is charged.

**Reference runs.** How likely a model finds somebody's text depends on the text far more than on
whether the model was trained on other text of theirs. So the attack in `userdp.auditing.membership`
is made again with a better :math:`\theta_0`: R more runs of the same plan, each on half of *all*
people, members and others alike, without their fresh text. A coin puts each person into one run of
every pair and out of the other, so that everybody is in half of the runs, and

.. math:: T(u) = \frac{1}{|X_u|} \sum_{x \in X_u} \frac{1}{|x|} \Bigl( \log p_\theta(x) -
    \frac{1}{R} \sum_r \log p_{\theta_r}(x) \Bigr)

compares each person's text with itself (per token, over all tokens of X_u). Source: the calibration
by difficulty of Watson et al. 2022 and the reference models of Carlini et al. 2022, for users.

The runs are private if the audited run was. The scores that are kept are operator-only.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.auditing.membership import FreshText, fresh_examples
from userdp.core import files
from userdp.core.codec import digest
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store_contents import TokenRows
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import StoreSplit, UserStore
from userdp.data.writer import StoreWriter
from userdp.plans import Plan
from userdp.training.causal_models import read_model
from userdp.training.config import PlainPlan, RunOptions, TrainConfig
from userdp.training.devices import choose_device
from userdp.training.loop import Watched, train

_SALT = 0x7265666572  # public: the same halves on every machine, and when the work goes on

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
            progress=progress or Progress(),
            watched=watched,
        )

    def clean(self) -> None:
        """Make the place, and remove the copies that a killed audit left there."""
        files.operator_folder(self.place)
        files.sweep(self.place)

    def scratch(self) -> AbstractContextManager[Path]:
        """A new folder in the place for private text, deleted at the end whatever happens."""
        self.clean()
        return files.working_folder(self.place, "work")


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
            tally.records_stored += len(rows)
        if not tally.records_stored:
            raise UseError("nobody is left for a run of the audit: the store is too small")
        writer.finish(source={"kind": "audit", "public": False}, tally=tally)
    return UserStore.open(out)


def reference_scores(of: Repetition, fresh: FreshText, *, count: int) -> NDArray[np.float64]:
    """Train the reference runs that are missing, and score everybody's fresh text by all of them.

    Args:
        of: the audited run. Its place keeps the scores of each finished run, so that an audit that
            was killed goes on after them.
        fresh: the text that is scored.
        count: how many runs; even.

    Returns:
        float64 (people,): the mean over the runs of `FreshText.means` per token.
    """
    key = _key(of)
    kept = [of.place / f"{key}-{number:03d}.npy" for number in range(count)]
    of.progress.stage("references", count, unit="run")
    for number, path in enumerate(kept):
        of.progress.at(number)
        if path.exists():
            continue
        with of.scratch() as work:
            of.train(copy_half(of.store, work / "store", number), work / "run")
            model = read_model(str(work / "run" / "model")).to(choose_device(of.device))
        scores = io.BytesIO()
        np.save(scores, fresh.means(model, per_token=True))
        files.write_file(path, scores.getvalue(), mode=files.OPERATOR_FILE)
    of.progress.at(count)
    return np.asarray(np.mean([np.load(path, allow_pickle=False) for path in kept], axis=0))


def copy_half(store: UserStore, out: Path, number: int) -> UserStore:
    """The store that reference ``number`` trains on: half of all people, without their fresh text.

    Runs 2k and 2k + 1 share all people between them. A person's coin is a function of their hash
    and k, and of nothing else: members and others are treated alike.

    Raises:
        UseError: nobody is in that half.
    """
    train_part, others = store.split(Split.TRAIN), store.split(Split.HELD_OUT_USERS)
    fresh = fresh_examples(store)[Split.HELD_OUT_USERS]
    pair, second = divmod(number, 2)
    chosen: dict[int, tuple[StoreSplit, int, NDArray[np.int64]]] = {}
    for part, left_out in ((train_part, [[]] * len(train_part.rows)), (others, fresh)):
        for user, row in enumerate(part.rows.tolist()):
            coin = np.random.default_rng([*part.user_hashes[user].tolist(), pair, _SALT])
            if (coin.random() < 0.5) != bool(second):
                examples = np.setdiff1d(np.arange(part.counts[user]), left_out[user])
                chosen[row] = part, user, examples
    return write_copy(store, (texts_of(*chosen[row]) for row in sorted(chosen)), out)


def _key(of: Repetition) -> str:
    """Digest of everything that a reference's scores depend on; it names the file of the scores."""
    whole = f"{of.store.meta.content_sha256} {of.plan} {digest(of.config)}"
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
