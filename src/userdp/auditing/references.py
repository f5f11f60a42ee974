r"""Reference runs: how likely models like the released one find a text, whoever they trained on.

How likely a model finds somebody's text depends on the text far more than on whether the model was
trained on other text of theirs. So the attack in `userdp.auditing.inference` is made again with a
better :math:`\theta_0`: R more runs of the same plan, each on half of *all* people, members and
others alike, without their fresh text. A coin puts each person into one run of every pair and out
of the other, so that everybody is in half of the runs, and

.. math:: T(u) = \frac{1}{|X_u|} \sum_{x \in X_u} \frac{1}{|x|} \Bigl( \log p_\theta(x) -
    \frac{1}{R} \sum_r \log p_{\theta_r}(x) \Bigr)

compares each person's text with itself (per token, over all tokens of X_u). Source: the calibration
by difficulty of Watson et al. 2022 and the reference models of Carlini et al. 2022, for users.

The runs are private if the audited run was. They train on copies of a part of the store, which are
deleted when the run ends. Nothing of the runs is released, so that nothing is charged; the scores
that are kept are operator-only.
"""

from __future__ import annotations

import hashlib
import io
from operator import itemgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.auditing.copies import Repetition, texts_of, write_copy
from userdp.auditing.inference import FreshText, fresh_examples
from userdp.core import files
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit, UserStore
from userdp.training.causal_models import read_model
from userdp.training.devices import choose_device

_SALT = 0x7265666572  # public: the same halves on every machine, and when the work goes on


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
    key = _key(of, fresh)
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
    people = [
        (int(row), part, user, np.setdiff1d(np.arange(part.counts[user]), left_out[user]))
        for part, left_out in ((train_part, [[]] * len(train_part.rows)), (others, fresh))
        for user, row in enumerate(part.rows)
    ]
    pair, second = divmod(number, 2)

    def is_in(part: StoreSplit, user: int) -> bool:
        coin = np.random.default_rng([*part.user_hashes[user].tolist(), pair, _SALT])
        return bool(coin.random() < 0.5) != bool(second)

    chosen = (
        texts_of(part, user, examples)
        for _, part, user, examples in sorted(people, key=itemgetter(0))
        if is_in(part, user)
    )
    return write_copy(store, chosen, out)


def _key(of: Repetition, fresh: FreshText) -> str:
    """Digest of everything that a reference's scores depend on; it names the file of the scores."""
    told = f"{of.store.meta.content_sha256} {of.plan} {of.config.digest}"
    digest = hashlib.sha256(told.encode())
    for side in fresh.sides:
        for values in (side.people, side.counts, side.examples):
            digest.update(values.tobytes())
    return digest.hexdigest()[:16]
