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
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from userdp import files
from userdp.arrays import read_array
from userdp.auditing.canaries import copied, scratch
from userdp.auditing.inference import FreshText, fresh_examples
from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.plans import Plan
from userdp.training.config import PlainPlan, RunOptions, TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.loop import train
from userdp.training.models import read_model

_NEVER = 1e9  # seconds
_SALT = 0x7265666572  # public: the same halves on every machine, and when the work goes on


def calibrated(own: NDArray[np.float64], references: NDArray[np.float64]) -> NDArray[np.float64]:
    """T of each person, float64 (people,).

    Args:
        own: float64 (people,), log-likelihood per token under the attacked model.
        references: float64 (runs, people), under each reference.

    >>> calibrated(np.array([-1.0, -2.0]), np.array([[-1.5, -2.0], [-0.5, -3.0]])).tolist()
    [0.0, 0.5]
    """
    scores: NDArray[np.float64] = own - references.mean(axis=0)
    return scores


def per_token(model: nn.Module, fresh: FreshText) -> NDArray[np.float64]:
    """float64 (people,), members first: log-likelihood per target token of each one's text."""
    means = []
    for side in fresh.sides:
        sums, targets = side.log_likelihoods(model)
        means.append(side.sums(sums) / np.maximum(side.sums(targets), 1))
    return np.concatenate(means)


def reference_scores(
    store: UserStore,
    fresh: FreshText,
    plan: Plan | PlainPlan,
    config: TrainConfig,
    *,
    place: Path,
    count: int,
    device: str = AUTO,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """Train the reference runs that are missing in ``place``, and score everybody by each.

    Args:
        store: of the audited run.
        fresh: what is scored.
        plan: of the audited run.
        config: of the audited run, without a selection by scores, which are another store's.
        place: a folder for the operator alone, where each finished run's scores are kept; a killed
            audit goes on after them.
        count: how many; even.
        device: of all of them, see `userdp.training.devices`.
        progress: is told how many runs are done.

    Returns:
        float64 (count, people), as `per_token`.
    """
    quiet = replace(
        config, evaluate_every=0, checkpoint_every=plan.steps, checkpoint_seconds=_NEVER
    )
    key = _key(store, fresh, plan, quiet)
    kept = [place / f"{key}-{number:03d}.npy" for number in range(count)]
    shown = progress or NoProgress()
    shown.stage("references", count, unit="run")
    with scratch(place) as work:
        for number, path in enumerate(kept):
            shown.at(number)
            if path.exists():
                continue
            half, out = copy_half(store, work / "store", number), work / "run"
            train(
                half,
                plan,
                quiet,
                out=out,
                # its δ is the audited run's own affair
                options=RunOptions(device=device, allow_large_delta=True),
            )
            trained, data = read_model(str(out / "model")), io.BytesIO()
            np.save(data, per_token(trained.to(choose_device(device)), fresh))
            files.write_file(path, data.getvalue(), mode=files.OPERATOR_FILE)
            for folder in (half.path, out):
                shutil.rmtree(folder)
    shown.at(count)
    return np.stack([read_array(path, what="the scores of a reference run") for path in kept])


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
    with copied(store, out) as copy:
        for _, part, user, examples in sorted(people, key=lambda person: person[0]):
            coin = np.random.default_rng([*part.user_hashes[user].tolist(), pair, _SALT])
            if (coin.random() < 0.5) != bool(second):
                copy.user(part, user, examples)
    return UserStore.open(out)


def _key(store: UserStore, fresh: FreshText, plan: Plan | PlainPlan, config: TrainConfig) -> str:
    """Digest of everything that a reference's scores depend on: names the file that keeps them."""
    digest = hashlib.sha256(f"{store.meta.content_sha256} {plan} {config.digest}".encode())
    for side in fresh.sides:
        for values in (side.people, side.counts, side.examples):
            digest.update(values.tobytes())
    return digest.hexdigest()[:16]
