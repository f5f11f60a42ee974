"""Example-level sampling where records have several owners, and who owns which is public."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from userdp.core.vocabulary import Adjacency
from userdp.sampling.base import Assumed, Words
from userdp.sampling.poisson import PoissonExamples

if TYPE_CHECKING:
    from userdp.accounting.mechanisms import NoisySteps


class FixedGraph(PoissonExamples):
    """ELS over records of several owners: one user's examples are exchanged for others.

    Guarantee: every user owns at most G examples of the training set, whoever holds them; between
    neighbouring data sets the contents of one user's examples change in any way, and which examples
    there are, and who owns them, stays. Removing the user's texts and adding others are each
    dominated by the mixture of `PoissonExamples` under zero-out adjacency; the price is that of
    both (`userdp.accounting.mechanisms`, where the proof stands).

    Args:
        group_size: G, most examples that one user owns, alone or with others.

    Source: the adjacency of Ganesh et al. 2025, arXiv:2503.03622.
    """

    kind: ClassVar[str] = "fixed-graph"
    adjacency: ClassVar[Adjacency] = Adjacency.FIXED_GRAPH
    words: ClassVar[Words] = replace(
        PoissonExamples.words,
        options={
            **PoissonExamples.words.options,
            "group_size": "most examples that one user owns, whoever holds them",
        },
        assumes=(
            Assumed(
                key="public-graph",
                title="Who owns which record is public",
                statement=(
                    "Under fixed-graph adjacency one user's texts change; which records there "
                    "are, their order and their owners are taken to be known, and no one's secret."
                ),
                otherwise="That somebody wrote to somebody at all is not protected by this ε.",
                ensured=(
                    "Nobody: it is the meaning of the claim. userdp takes records by that graph "
                    "alone."
                ),
            ),
        ),
    )

    def _priced(self, noise_multiplier: float, steps: int) -> NoisySteps:
        from userdp.accounting.mechanisms import Exchanged

        removed = replace(self._mixture(noise_multiplier, steps), adjacency=Adjacency.ZERO_OUT)
        return Exchanged(mixture=removed, adjacency=self.adjacency)
