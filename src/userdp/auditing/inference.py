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

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from userdp.auditing.roc import Roc, roc
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.training.losses import split_losses
from userdp.vocabulary import require_count

_SALT = 0x6672657368  # public: the same examples on every machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """Members, or the others, and the fresh examples that the attack reads of them.

    Args:
        part: the split that holds the examples.
        people: int64 (people,), positions in ``part``.
        counts: int64 (people,), examples read of each; at least 1.
        examples: int64 (sum of counts,), person after person.
    """

    part: StoreSplit
    people: NDArray[np.int64]
    counts: NDArray[np.int64]
    examples: NDArray[np.int64]

    def log_likelihoods(
        self, model: nn.Module, *, batch: int = 32
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """float64 (examples,): log p(x) summed over target tokens, and the number of those."""
        users = np.repeat(self.people, self.counts)
        losses, targets = split_losses(model, self.part, users, self.examples, batch=batch)
        return -losses * targets, targets

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """(people,): the sum over each person's examples."""
        return np.add.reduceat(values, np.cumsum(self.counts) - self.counts)


@dataclass(frozen=True, kw_only=True, slots=True)
class FreshText:
    """What both sides wrote and nobody trained on."""

    members: Side
    others: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Members first."""
        return self.members, self.others

    def roc(self, scores: NDArray[np.float64]) -> Roc:
        """Of a score that is greater for members: float64 (people,), members first.

        A model that diverged says nothing of anybody: NaN counts as 0.
        """
        told = np.nan_to_num(scores, nan=0.0)
        return roc(*np.split(told, [len(self.members.people)]))


def user_inference(model: nn.Module, base: nn.Module, fresh: FreshText, *, batch: int = 32) -> Roc:
    """Tell training users from held-out users by the mean log-likelihood ratio of fresh text.

    Operator-only.

    Args:
        model: the released one.
        base: what the run began from.
        fresh: of both sides.
        batch: examples in one pass.
    """
    means = []
    for side in fresh.sides:
        after, _ = side.log_likelihoods(model, batch=batch)
        before, _ = side.log_likelihoods(base, batch=batch)
        means.append(side.sums(after - before) / side.counts)
    return fresh.roc(np.concatenate(means))


def fresh_text(store: UserStore, *, most_examples: int = 8, most_users: int = 2000) -> FreshText:
    """The fresh examples of both sides.

    At most the first ``most_examples`` of each person's are read, on both sides, so that neither
    side's scores are steadier than the other's.

    Args:
        store: with users and examples held out.
        most_examples: of a person.
        most_users: of a side, the first so many.

    Raises:
        UseError: nobody, or one person alone, is on a side.
    """
    require_count("most_examples", most_examples)
    require_count("most_users", most_users, at_least=2)
    sides = {}
    for name, fresh in fresh_examples(store).items():
        people = np.array([n for n, own in enumerate(fresh) if len(own)], dtype=np.int64)
        people = people[:most_users]
        if len(people) < 2:
            raise UseError(
                f"the store holds fresh examples of {len(people)} users in split {name}: there is "
                "nobody to tell from the others",
                hint="prepare it with --held-out-users 0.1 --held-out-examples 0.05, or audit with "
                "--no-inference",
            )
        kept = [fresh[n][:most_examples] for n in people]
        sides[name] = Side(
            part=store.split(name),
            people=people,
            counts=np.array([len(own) for own in kept], dtype=np.int64),
            examples=np.concatenate(kept),
        )
    return FreshText(members=sides[Split.HELD_OUT_EXAMPLES], others=sides[Split.HELD_OUT_USERS])


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
