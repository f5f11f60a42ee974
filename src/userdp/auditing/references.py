r"""Reference runs: what a model says of people's fresh text, whoever was trained on.

How likely a model finds somebody's text depends on the text far more than on whether other text of
theirs was trained on. So the attack in `userdp.auditing.inference` is made again with a better
:math:`\theta_0`: R more runs of the same plan, each on half of *all* people, members and others
alike, their fresh text left out. In every pair of runs each person is in one by a coin and out of
the other, so that all are in as many and out of as many, and

.. math:: T(u) = \frac{1}{|X_u|} \sum_{x \in X_u} \frac{1}{|x|} \Bigl( \log p_\theta(x) -
    \frac{1}{R} \sum_r \log p_{\theta_r}(x) \Bigr)

compares each person's text with itself (per token, over all tokens of X_u). Source: the calibration
by difficulty of Watson et al. 2022 and the reference models of Carlini et al. 2022, for users.

The runs are private ones if the audited run was, on copies of a part of the store, which go when
the run ends. Nothing of them is released, so nothing is charged; what is kept is operator-only.
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
from userdp.core.errors import UseError, kind_of
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit, UserStore
from userdp.training.causal_models import read_model
from userdp.training.devices import choose_device

_SALT = 0x7265666572  # public: the same halves on every machine, and when the work goes on


def reference_scores(of: Repetition, fresh: FreshText, *, count: int) -> NDArray[np.float64]:
    """Train the reference runs that are missing in the place, and score everybody by all.

    Args:
        of: the audited run. In its place each finished run's scores are kept; a killed audit goes
            on after them.
        fresh: what is scored.
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
    return np.asarray(np.mean([_read_scores(path) for path in kept], axis=0))


def copy_half(store: UserStore, out: Path, number: int) -> UserStore:
    """What reference ``number`` trains on: half of all people, less their fresh text.

    Runs 2k and 2k + 1 are halves of one whole. A person's coin is a function of their hash and k:
    whether they are a member plays no part.

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
    """Digest of everything that a reference's scores depend on: names the file that keeps them."""
    told = f"{of.store.meta.content_sha256} {of.plan} {of.config.digest}"
    digest = hashlib.sha256(told.encode())
    for side in fresh.sides:
        for values in (side.people, side.counts, side.examples):
            digest.update(values.tobytes())
    return digest.hexdigest()[:16]


def _read_scores(path: Path) -> NDArray[np.float64]:
    """The scores of a reference run: a row of float64 that `numpy.save` wrote.

    Guarantee: nothing is unpickled, and no more memory taken than the file is long, whatever shape
    its header names.

    Args:
        path: of the file.

    Raises:
        UseError: there is no such file, or it holds something else.
    """
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        values = np.array(mapped)
    except Exception as error:  # the header is parsed as Python, which raises of many kinds
        raise UseError(
            f"cannot read a reference run's scores at {path}: {kind_of(error)}"
        ) from error
    if values.ndim != 1 or values.dtype != np.float64:
        raise UseError(
            f"cannot read a reference run's scores at {path}: it holds an array of another kind"
        )
    return values
