"""Batches of an exact size, drawn without replacement at each step: of examples, and of users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from userdp.core.errors import UseError
from userdp.core.vocabulary import PrivacyUnit, require_count
from userdp.sampling.base import Assumed, Sampling, Words

if TYPE_CHECKING:
    import numpy as np

    from userdp.accounting.mechanisms import NoisySteps
    from userdp.sampling.base import Indices

_ASSUMES = Assumed(
    key="least-population",
    title="There are at least so many units without any one user",
    statement=(
        "The number of units (users, or examples after the cap) stays at or above the plan's "
        "lower bound whichever single user is left out, and that bound owes nothing to the data."
    ),
    otherwise="A unit would be drawn more often than ε says.",
    ensured=(
        "userdp refuses a store below the bound before anything is charged. That it was not "
        "refused tells that the bound holds, which is taken to be known."
    ),
)


@dataclass(frozen=True, kw_only=True)
class FixedSize(Sampling):
    """Exactly B units at every step, without replacement; afresh and independently each time.

    Args:
        batch_size: B, the units of a step; at most ``least_population``.
        least_population: n, a *public lower bound* on the units of the smaller data set.
    """

    batch_size: int
    least_population: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("batch_size", self.batch_size)
        require_count("least_population", self.least_population)
        if self.batch_size > self.least_population:
            raise UseError(
                f"batch_size must be at most least_population, got {self.batch_size} of "
                f"{self.least_population}: a batch is drawn without replacement"
            )

    @classmethod
    def of_size(cls, size: float, *, population: int, group_size: int, **bounds: Any) -> Self:
        whole = int(size) if size == int(size) else size  # what is not whole is refused
        return cls(batch_size=cast(int, whole), group_size=group_size, **bounds)

    def chance(self, total: int) -> float:
        return min(1.0, self.batch_size / total) if total else 0.0

    def sizes(self, total: int) -> tuple[int, int]:
        size = min(self.batch_size, total)
        return size, size

    def expected_units(self, population: int) -> float:
        if self.least_population > population:
            raise UseError(
                f"least_population ({self.least_population}) is a lower bound, and the declared "
                f"population is {population}"
            )
        return float(self.batch_size)

    def require_store(self, counts: Indices) -> None:
        # Who is in the store must be covered against leaving it: the smaller of the two data sets
        # is then the one without that user, and it is the one that the bound is for.
        if self.total_units(counts) < self.least_population + self.items:
            raise UseError(
                f"the store has fewer than {self.least_population} units of sampling {self.kind} "
                f"beside the {self.items} of any one user: the price would be too low. Nothing was "
                "charged. That it is so is a fact about private data, for the operator only",
                hint="plan with a smaller least_population",
            )

    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        import numpy as np

        from userdp.sampling.draws import distinct_indices

        while True:
            yield np.sort(distinct_indices(generator, total, self.batch_size))

    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        from userdp.accounting.mechanisms import hypergeometric_steps

        return hypergeometric_steps(
            batch_size=self.batch_size,
            population=self.least_population,
            group_size=self.items,
            noise_multiplier=noise_multiplier,
            steps=steps,
        )


def _words(units: str, *, scope: str, beside: str) -> Words:
    return Words(
        title=f"batches of {units} of a fixed size",
        draw=f"each step draws exactly B {units} without replacement",
        options={
            "group_size": f"most examples of a user in {scope}",
            "batch_size": f"{units} in every step",
            "least_population": f"public lower bound on the {units} of the store without {beside}",
        },
        symbols={"batch_size": "B", "least_population": "n"},
        assumes=(_ASSUMES,),
    )


class FixedSizeUsers(FixedSize):
    """Exactly B of at least n users per step, each with at most G of its examples.

    Guarantee: dominated by N(2·Bern(B/(n + 1)), σ²)^T against N(0, σ²)^T among data sets of at
    least n users (Ganesh 2024, Theorem 3.3, with k = 1 user in place of an example): a user who is
    drawn also displaces another one, hence the 2.
    """

    kind: ClassVar[str] = "fixed-cohort"
    algorithm: ClassVar[str] = "ULS"
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.USER
    words: ClassVar[Words] = _words("users", scope="a step", beside="any one")


class FixedSizeExamples(FixedSize):
    """Exactly B of at least n examples per step; G examples per user in the training set.

    Guarantee: dominated, per user under add-or-remove adjacency among data sets of at least n
    examples, by N(2·Hypergeom(B, n + G, G), σ²)^T against N(0, σ²)^T: a user's example that is
    drawn also displaces another one, hence the 2 (Ganesh 2024, Theorem 3.3, with G examples added
    to the smaller data set of n). The bound is attained.
    """

    kind: ClassVar[str] = "fixed-batch"
    words: ClassVar[Words] = _words("examples", scope="all training", beside="any user")
