r"""User inference: was this person in the training data, judged by *fresh* text of theirs?

.. math:: T(u) = \frac{1}{|X_u|} \sum_{x \in X_u} \log \frac{p_\theta(x)}{p_{\theta_0}(x)}

with the released model :math:`\theta` and the model :math:`\theta_0` that the run began from; X_u
are examples of u that nothing was trained on. Members' are the split of held-out examples, the
others' are held-out users'. Source: Kandpal et al. 2023, Equation 2.

A store holds out a part of each training user's examples, so a member with fresh examples has many
examples, as a rule. Were held-out users taken whole, busy people would be told from quiet ones,
trained on or not. So of a held-out user the same part is read, drawn by the user's public hash, and
who then has nothing is left out: the two sides differ by the training alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from userdp.auditing.roc import Roc, roc
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.guarantees import require_count
from userdp.training.split_losses import split_losses

_SALT = 0x6672657368  # public: the same examples on every machine


def user_inference(
    model: nn.Module,
    base: nn.Module,
    store: UserStore,
    *,
    most_examples: int = 8,
    most_users: int = 2000,
    batch: int = 32,
) -> Roc:
    """Tell training users from held-out users by the mean log-likelihood ratio of fresh text.

    Operator-only. At most the first ``most_examples`` of each user's fresh examples are read, on
    both sides, so that neither side's scores are steadier than the other's.

    Args:
        model: the released one.
        base: what the run began from.
        store: with users and examples held out.
        most_examples: of a user.
        most_users: of a side, the first so many.
        batch: examples in one pass.

    Raises:
        UseError: nobody, or one person alone, is on a side.
    """
    require_count("most_examples", most_examples)
    require_count("most_users", most_users, at_least=2)
    scores = {}
    for name, fresh in fresh_examples(store).items():
        kept = [own for own in fresh if len(own)][:most_users]
        if len(kept) < 2:
            raise UseError(
                f"the store holds fresh examples of {len(kept)} users in split {name}: there is "
                "nobody to tell from the others",
                hint="prepare it with --held-out-users 0.1 --held-out-examples 0.05, or audit with "
                "--no-inference",
            )
        part = store.split(name)
        kept = [own[:most_examples] for own in kept]
        counts = np.array([len(own) for own in kept])
        numbers = np.array([n for n, own in enumerate(fresh) if len(own)][:most_users])
        users, examples = np.repeat(numbers, counts), np.concatenate(kept)
        ratios = log_likelihoods(model, part, users, examples, batch=batch) - log_likelihoods(
            base, part, users, examples, batch=batch
        )
        # A model that diverged says nothing of anybody.
        means = np.add.reduceat(ratios, np.cumsum(counts) - counts) / counts
        scores[name] = np.nan_to_num(means, nan=0.0)
    return roc(scores[Split.HELD_OUT_EXAMPLES], scores[Split.HELD_OUT_USERS])


def fresh_examples(store: UserStore) -> dict[Split, list[NDArray[np.int64]]]:
    """By split, each user's fresh examples: int64, for members all that were held out.

    Of a held-out user each example but the first, with the chance that a training user's example
    but the first was held out with; a function of the user's hash, the number of examples and that
    chance.
    """
    members, others = store.split(Split.HELD_OUT_EXAMPLES), store.split(Split.HELD_OUT_USERS)
    trained = store.split(Split.TRAIN).counts
    held_out = int(members.counts.sum())
    chance = held_out / max(1, held_out + int((trained - 1).sum()))
    drawn: list[NDArray[np.int64]] = []
    for user, count in enumerate(others.counts.tolist()):
        draw = np.random.default_rng([*others.user_hashes[user].tolist(), _SALT])
        fresh = np.flatnonzero(draw.random(count - 1) < chance)
        drawn.append(1 + fresh.astype(np.int64))
    return {
        Split.HELD_OUT_EXAMPLES: [
            np.arange(count, dtype=np.int64) for count in members.counts.tolist()
        ],
        Split.HELD_OUT_USERS: drawn,
    }


def log_likelihoods(
    model: nn.Module,
    part: StoreSplit,
    users: NDArray[np.int64],
    examples: NDArray[np.int64],
    *,
    batch: int = 32,
) -> NDArray[np.float64]:
    """float64 (rows,): log p(x) of each example, summed over its target tokens."""
    losses, targets = split_losses(model, part, users, examples, batch=batch)
    return -losses * targets
