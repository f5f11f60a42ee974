"""Poisson sampling whose draw is cut to a cap, so that a step fits a fixed memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_count
from userdp.sampling.base import Assumed, Words
from userdp.sampling.poisson import Poisson, PoissonExamples, PoissonUsers

if TYPE_CHECKING:
    import numpy as np

    from userdp.accounting.mechanisms import NoisySteps
    from userdp.sampling.base import Indices

_OPTIONS = {
    "cap": "most units of a step; a larger draw is cut to so many by chance",
    "most_population": "public upper bound on the units of the store with one more user",
}
_ASSUMES = Assumed(
    key="most-population",
    title="There are at most so many units with one more user",
    statement=(
        "The number of units (users, or examples after the cap per user) stays at or below the "
        "plan's upper bound when one more user joins, and that bound owes nothing to the data."
    ),
    otherwise="Draws would be cut more often than δ pays for.",
    ensured=(
        "userdp refuses a store above the bound before anything is charged. That it was not "
        "refused tells that the bound holds, which is taken to be known."
    ),
)


@dataclass(frozen=True, kw_only=True)
class Truncated(Poisson):
    """A Poisson draw; of one that is larger than the cap a uniformly random subset of that size.

    Guarantee: the steps differ from those without a cap with probability at most
    τ = T·Pr[Binomial(N, p) > cap] on every data set of at most N units, which adds (1 + e^ε)·τ to
    δ (`userdp.accounting.mechanisms.Capped`, where the proof stands).

    Args:
        cap: most units of a step; at least 1.
        most_population: N, a *public upper bound* on the units of the larger data set.
    """

    cap: int
    most_population: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("cap", self.cap)
        require_count("most_population", self.most_population)

    def sizes(self, total: int) -> tuple[int, int]:
        return 0, min(self.cap, total)

    def expected_units(self, population: int) -> float:
        if self.most_population < population:
            raise UseError(
                f"most_population ({self.most_population}) is an upper bound, and the declared "
                f"population is {population}"
            )
        return super().expected_units(population)

    def require_store(self, counts: Indices) -> None:
        if self.total_units(counts) + self.items > self.most_population:
            raise UseError(
                f"the store has more units of sampling {self.kind} than most_population = "
                f"{self.most_population} allows with one more user's {self.items}. Nothing was "
                "charged. That it is so is a fact about private data, for the operator only",
                hint="plan with a larger most_population",
            )

    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        import numpy as np

        from userdp.sampling.draws import distinct_indices

        for drawn in super().draws(total, generator):
            if len(drawn) > self.cap:
                drawn = np.sort(drawn[distinct_indices(generator, len(drawn), self.cap)])
            yield drawn

    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        from userdp.accounting.item_count_laws import Binomial
        from userdp.accounting.mechanisms import Capped

        return Capped(
            mixture=self._mixture(noise_multiplier, steps),
            cap=self.cap,
            drawn=Binomial(trials=self.most_population, probability=self.sampling_probability),
        )


def _words(units: str, whole: Words) -> Words:
    return replace(
        whole,
        title=f"Poisson sampling of {units}, cut to a cap",
        draw=f"{whole.draw}; of more than the cap so many stay, by chance",
        options={**whole.options, **_OPTIONS},
        assumes=(_ASSUMES,),
    )


class TruncatedUsers(Truncated, PoissonUsers):
    """ULS with at most ``cap`` users in a step."""

    kind: ClassVar[str] = "truncated-users"
    words: ClassVar[Words] = _words("users", PoissonUsers.words)


class TruncatedExamples(Truncated, PoissonExamples):
    """ELS with at most ``cap`` examples in a step."""

    kind: ClassVar[str] = "truncated-examples"
    words: ClassVar[Words] = _words("examples", PoissonExamples.words)
