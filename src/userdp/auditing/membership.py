r"""Membership inference for users: was this person trained on, judged by *fresh* text of theirs?

.. math:: T(u) = \frac{1}{|X_u|} \sum_{x \in X_u} \log \frac{p_\theta(x)}{p_{\theta_0}(x)}

with the released model :math:`\theta` and the model :math:`\theta_0` that the run began from; X_u
are examples of u that no model was trained on. Those of members are the split of held-out examples,
those of others belong to held-out users. Source: Kandpal et al. 2023, Equation 2.

A store holds out a part of each training user's examples, so that a member with fresh examples has
many examples, as a rule. If all examples of held-out users were read, the attack would tell busy
people from quiet ones, whether or not they trained. So the same part of a held-out user's examples
is read, drawn by the user's public hash, and a user without any of them is left out: the two sides
differ only by the training.

How well a score tells members from others is its ROC: the AUC, and the true positive rate at a low
false positive rate, each with an interval over people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, mannwhitneyu
from torch import nn

from userdp.core.errors import UseError
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit, UserStore
from userdp.training.store_losses import split_losses

_SALT = 0x6672657368  # public: the same examples on every machine
_MOST_EXAMPLES, _MOST_PEOPLE, _POINTS = 8, 2000, 200
_CONFIDENCE, _RESAMPLES, _LOW_FPR = 0.95, 2000, 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Roc:
    """How well one score tells members from others. Operator-only.

    Args:
        members: how many.
        others: how many.
        auc: probability that a member scores above another person; ties count half.
        auc_low: of the bootstrap interval.
        auc_high: of the bootstrap interval.
        confidence: of both intervals.
        tpr_at_low_fpr: members found where at most ``low_fpr`` of the others are accused.
        tpr_low: of the Clopper-Pearson interval over members, at the threshold that is used here.
        tpr_high: of the same interval.
        low_fpr: 1%.
        curve: (false positive rate, true positive rate), at most 200 points.
        at_chance: whether 0.5 lies within the interval.
    """

    members: int
    others: int
    auc: float
    auc_low: float
    auc_high: float
    confidence: float
    tpr_at_low_fpr: float
    tpr_low: float
    tpr_high: float
    low_fpr: float
    curve: tuple[tuple[float, float], ...]
    at_chance: bool


def area(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """The AUC: (Mann and Whitney's U) / (members x others).

    >>> area(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    above = mannwhitneyu(members, others, method="asymptotic").statistic
    return float(above) / (len(members) * len(others))


def roc(members: NDArray[np.float64], others: NDArray[np.float64]) -> Roc:
    """ROC of a score that is greater for members; two people at least on each side.

    The interval of the AUC is a percentile bootstrap: people of both sides are drawn anew, with
    replacement.
    """
    draw, tail = np.random.default_rng(0), (1 - _CONFIDENCE) / 2
    areas = [
        area(draw.choice(members, len(members)), draw.choice(others, len(others)))
        for _ in range(_RESAMPLES)
    ]
    low, high = np.quantile(areas, [tail, 1 - tail])
    thresholds = np.array([np.inf, *np.unique(np.concatenate([members, others]))[::-1]])
    fpr, tpr = _reaching(others, thresholds), _reaching(members, thresholds)
    most = float(tpr[fpr <= _LOW_FPR].max())
    found = binomtest(round(most * len(members)), len(members)).proportion_ci(_CONFIDENCE)
    kept = np.unique(np.linspace(0, len(fpr) - 1, _POINTS).astype(int))
    return Roc(
        members=len(members),
        others=len(others),
        auc=area(members, others),
        auc_low=float(low),
        auc_high=float(high),
        confidence=_CONFIDENCE,
        tpr_at_low_fpr=most,
        tpr_low=float(found.low),
        tpr_high=float(found.high),
        low_fpr=_LOW_FPR,
        curve=tuple(zip(fpr[kept].tolist(), tpr[kept].tolist(), strict=True)),
        at_chance=bool(low <= 0.5 <= high),
    )


def _reaching(values: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of ``values`` at or above each threshold."""
    below = np.searchsorted(np.sort(values), thresholds, side="left")
    return np.asarray((len(values) - below) / len(values))


@dataclass(frozen=True, slots=True)
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

    def log_likelihoods(self, model: nn.Module) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """float64 (examples,): log p(x) summed over target tokens, and the number of those."""
        users = np.repeat(self.people, self.counts)
        losses, targets = split_losses(model, self.part, users, self.examples, batch=32)
        return -losses * targets, targets

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """(people,): the sum over each person's examples."""
        return np.add.reduceat(values, np.cumsum(self.counts) - self.counts)


@dataclass(frozen=True, slots=True)
class FreshText:
    """Examples of members and of others that no model was trained on.

    Args:
        sides: of the members, and of the others.
    """

    sides: tuple[Side, ...]

    def means(self, model: nn.Module, *, per_token: bool = False) -> NDArray[np.float64]:
        """float64 (people,), members first: the mean log p(x) of each one's examples or tokens."""
        means = []
        for side in self.sides:
            sums, targets = side.log_likelihoods(model)
            counts = np.maximum(side.sums(targets), 1) if per_token else side.counts
            means.append(side.sums(sums) / counts)
        return np.concatenate(means)

    def roc(self, scores: NDArray[np.float64]) -> Roc:
        """Of a score that is greater for members: float64 (people,), members first.

        A model that diverged tells nobody from anybody: NaN counts as 0.
        """
        return roc(*np.split(np.nan_to_num(scores, nan=0.0), [len(self.sides[0].people)]))


def membership_inference(model: nn.Module, base: nn.Module, fresh: FreshText) -> Roc:
    """Tell training users from held-out users by the mean log-likelihood ratio of fresh text.

    Operator-only.

    Args:
        model: the released one.
        base: what the run began from.
        fresh: of both sides.
    """
    return fresh.roc(fresh.means(model) - fresh.means(base))


def fresh_text(store: UserStore) -> FreshText:
    """The fresh examples of the first 2,000 people of each side.

    At most the first eight examples of each person are read, on both sides, so that neither side's
    scores are steadier than the other's.

    Raises:
        UseError: a side has fewer than two people.
    """
    sides = []
    for name, fresh in fresh_examples(store).items():
        people = np.flatnonzero([len(own) for own in fresh])[:_MOST_PEOPLE]
        if len(people) < 2:
            raise UseError(
                f"the store holds fresh examples of {len(people)} users in split {name}: there is "
                "nobody to tell from the others",
                hint="prepare it with --held-out-users 0.1 --held-out-examples 0.05, or audit with "
                "--no-inference",
            )
        kept = [fresh[one][:_MOST_EXAMPLES] for one in people]
        counts = np.array([len(own) for own in kept], dtype=np.int64)
        sides.append(Side(store.split(name), people, counts, np.concatenate(kept)))
    return FreshText(tuple(sides))


def fresh_examples(store: UserStore) -> dict[Split, list[NDArray[np.int64]]]:
    """By split, members first, the int64 numbers of each user's fresh examples.

    Members have all their held-out examples. Each example of a held-out user but the first is drawn
    with the same chance at which examples of training users, but for their first, were held out.
    The draw is a function of the user's hash, the number of examples and that chance.
    """
    members, others = store.split(Split.HELD_OUT_EXAMPLES), store.split(Split.HELD_OUT_USERS)
    trained = store.split(Split.TRAIN).counts
    held_out = int(members.counts.sum())
    chance = held_out / max(1, held_out + int((trained - 1).sum()))
    drawn: list[NDArray[np.int64]] = []
    for user, count in enumerate(others.counts.tolist()):
        draw = np.random.default_rng([*others.user_hashes[user].tolist(), _SALT])
        drawn.append(1 + np.flatnonzero(draw.random(count - 1) < chance))
    whole = [np.arange(count, dtype=np.int64) for count in members.counts.tolist()]
    return {Split.HELD_OUT_EXAMPLES: whole, Split.HELD_OUT_USERS: drawn}
