"""How a step draws its data: each sampling's law, price, draw and words in a file of its own."""

from userdp.core.errors import UseError, one_of
from userdp.sampling.base import Sampling
from userdp.sampling.fixed_graph import FixedGraph
from userdp.sampling.fixed_size import FixedSizeExamples, FixedSizeUsers
from userdp.sampling.poisson import (
    PoissonExamples,
    PoissonPooled,
    PoissonSubjects,
    PoissonUsers,
)
from userdp.sampling.shuffle import ShuffleExamples, ShuffleUsers
from userdp.sampling.truncated import TruncatedExamples, TruncatedUsers

SAMPLINGS: dict[str, type[Sampling]] = {
    sampling.kind: sampling
    for sampling in (
        PoissonUsers,
        PoissonExamples,
        FixedGraph,
        FixedSizeUsers,
        FixedSizeExamples,
        TruncatedUsers,
        TruncatedExamples,
        ShuffleUsers,
        ShuffleExamples,
    )
}
"""The samplings of one store by their names in plans, ledgers and on the command line.

`PoissonSubjects` and `PoissonPooled` are those of federations (`userdp.federated.algorithms`); they
are read from ledgers like all others.
"""


def sampling_named(kind: str) -> type[Sampling]:
    """The sampling of this name; `UseError` where there is none."""
    if kind not in SAMPLINGS:
        raise UseError(f"there is no sampling {kind!r}", hint=one_of(kind, SAMPLINGS))
    return SAMPLINGS[kind]


__all__ = [
    "SAMPLINGS",
    "FixedGraph",
    "FixedSizeExamples",
    "FixedSizeUsers",
    "PoissonExamples",
    "PoissonPooled",
    "PoissonSubjects",
    "PoissonUsers",
    "Sampling",
    "ShuffleExamples",
    "ShuffleUsers",
    "TruncatedExamples",
    "TruncatedUsers",
    "sampling_named",
]
