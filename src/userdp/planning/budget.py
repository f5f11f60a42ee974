"""How a total (ε, δ) is split between DP statistics and training, before the first of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from userdp.errors import UseError
from userdp.vocabulary import delta_up, epsilon_up, require_count, require_delta, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A DP answer that came before the plan, so that its parameters may have followed it.

    Args:
        name: what was asked ("users", "examples", "median", …).
        query_id: of its line in the store's ledger.
        epsilon: what that line charges; fixed before the answer was drawn.
        delta: likewise.
        value: the answer, if it is one number.
    """

    name: str
    query_id: str
    epsilon: float
    delta: float = 0.0
    value: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivacyBudget:
    """A total (ε, δ), the share of the DP statistics used, and what is left for training.

    Guarantee: the releases together with a mechanism that is
    (``training_epsilon``, ``training_delta``)-DP are (``epsilon``, ``delta``)-DP by basic
    composition (Dwork and Roth 2014, Theorem 3.16), which holds for parameters chosen after seeing
    the releases as long as each (ε_i, δ_i) was fixed before.

    Args:
        epsilon: of everything together, > 0.
        delta: of everything together, in (0, 1).
        releases: the DP answers before it, each once, whether or not a number is taken from it.
        query_share: the share of ε set aside for them; exactly what they cost, by default.

    Raises:
        UseError: the releases cost more than their share, or leave nothing for training.
    """

    epsilon: float
    delta: float
    releases: tuple[Release, ...] = ()
    query_share: float | None = None

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        require_delta(self.delta)
        spent = self.query_epsilon
        if self.query_share is not None:
            if not 0 <= self.query_share < 1:
                raise UseError(
                    f"query_share must be at least 0 and less than 1, got {self.query_share!r}"
                )
            if spent > self.query_share * self.epsilon * (1 + 1e-12):
                raise UseError(
                    f"the DP answers before this plan cost epsilon = {self._spent}, and "
                    f"their share of the budget is {self.query_share:g} of "
                    f"{epsilon_up(self.epsilon)}, that is "
                    f"{epsilon_up(self.query_share * self.epsilon)}: the total would not hold",
                    hint="give a larger --query-share or --epsilon",
                )
        if not self.training_epsilon > 0 or not self.training_delta > 0:
            raise UseError(
                f"the DP answers before this plan cost epsilon = {self._spent} and delta = "
                f"{delta_up(self.query_delta)}, the whole budget is ({epsilon_up(self.epsilon)}, "
                f"{delta_up(self.delta)}): nothing is left for training",
                hint="raise --epsilon: a later claim counts each of them, whether or not the plan "
                "takes a number from it",
            )

    @property
    def query_epsilon(self) -> float:
        """Σ ε_i of the releases."""
        return math.fsum(release.epsilon for release in self.releases)

    @property
    def _spent(self) -> str:
        parts = ", ".join(f"{one.name} {epsilon_up(one.epsilon)}" for one in self.releases)
        return f"{epsilon_up(self.query_epsilon)} ({parts})"

    @property
    def query_delta(self) -> float:
        """Σ δ_i of the releases."""
        return math.fsum(release.delta for release in self.releases)

    @property
    def training_epsilon(self) -> float:
        """What training is calibrated to; rounded down so that the sum stays within the total."""
        if self.query_share is not None:
            return self.epsilon * (1 - self.query_share) * (1 - 1e-15)
        if not self.releases:
            return self.epsilon
        return (self.epsilon - self.query_epsilon) * (1 - 1e-15)

    @property
    def training_delta(self) -> float:
        """What training is calibrated to; rounded down."""
        if not self.query_delta:
            return self.delta
        return (self.delta - self.query_delta) * (1 - 1e-15)

    @property
    def shares(self) -> dict[str, float]:
        """How the total is split, for the file of a proposal."""
        return {
            "query_epsilon": self.query_epsilon,
            "training_epsilon": self.training_epsilon,
            "training_delta": self.training_delta,
        }


def delta_for(count: int) -> float:
    """δ = n^-1.1 (Charles et al. 2024, Section 5), for a *declared* n.

    >>> f"{delta_for(135_818_730):.3g}"
    '1.13e-09'
    """
    if require_count("n", count, at_least=2) < 100:
        raise UseError(
            f"delta = n^-1.1 of n = {count} is {delta_up(count**-1.1, 2)}: with so few people "
            "a promise with that delta says little",
            hint="give --delta",
        )
    return float(count**-1.1)
