"""`Strategy`: the names of the ways to choose among a user's examples; imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class Strategy(StrEnum):
    """See `userdp.data.selection`."""

    RANDOM = "random"
    LONGEST = "longest"
    SHORTEST = "shortest"
    HIGHEST_PERPLEXITY = "highest-perplexity"
    LOWEST_PERPLEXITY = "lowest-perplexity"
    RANDOM_CHUNK = "random-chunk"
    RESAMPLED = "resampled"

    @property
    def scored(self) -> bool:
        """Whether it needs a score for each example (`userdp.data.selection`)."""
        return self in (Strategy.HIGHEST_PERPLEXITY, Strategy.LOWEST_PERPLEXITY)

    @property
    def per_step_only(self) -> bool:
        """Whether it draws anew at each step, so that example-level sampling cannot use it."""
        return self in (Strategy.RANDOM_CHUNK, Strategy.RESAMPLED)
