"""Batches of a shuffled pass over the data: what most trainers do, and no ε covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from userdp.sampling.base import Words
from userdp.sampling.poisson import Poisson, PoissonExamples, PoissonUsers

if TYPE_CHECKING:
    import numpy as np

    from userdp.sampling.base import Indices


class Shuffle(Poisson):
    """Passes over all units in a fresh order each, cut into batches; nothing is ever claimed.

    Args:
        sampling_probability: the part of all units that a batch has.
    """

    covered: ClassVar[bool] = False

    def draws(self, total: int, generator: np.random.Generator) -> Iterator[Indices]:
        import numpy as np

        size = max(1, round(self.sampling_probability * total))
        queue = np.empty(0, dtype=np.int64)
        while True:
            if len(queue) < size:
                queue = generator.permutation(total)
            drawn, queue = queue[:size], queue[size:]
            yield np.sort(drawn)


def _words(units: str, options: Mapping[str, str]) -> Words:
    return Words(
        title=f"shuffled batches of {units}",
        draw=f"each pass over the {units} is shuffled and cut into batches; no ε covers that",
        options=options,
    )


class ShuffleUsers(Shuffle, PoissonUsers):
    """Shuffled passes over users."""

    kind: ClassVar[str] = "unsafe-shuffle-users"
    words: ClassVar[Words] = _words("users", PoissonUsers.words.options)


class ShuffleExamples(Shuffle, PoissonExamples):
    """Shuffled passes over examples."""

    kind: ClassVar[str] = "unsafe-shuffle-examples"
    words: ClassVar[Words] = _words("examples", PoissonExamples.words.options)
