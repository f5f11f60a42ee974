"""How a step draws its data: each sampling's law, price, draw and words in a file of its own."""

from userdp.sampling.base import Sampling
from userdp.sampling.fixed_graph import FixedGraph
from userdp.sampling.fixed_size import FixedSizeExamples, FixedSizeUsers
from userdp.sampling.poisson_examples import PoissonExamples
from userdp.sampling.poisson_pooled import PoissonPooled
from userdp.sampling.poisson_subjects import PoissonSubjects
from userdp.sampling.poisson_users import Poisson, PoissonUsers
from userdp.sampling.shuffle import ShuffleExamples, ShuffleUsers
from userdp.sampling.truncated import TruncatedExamples, TruncatedUsers
from userdp.vocabulary import PrivacyUnit

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

_POISSON: dict[PrivacyUnit, type[Poisson]] = {
    PrivacyUnit.USER: PoissonUsers,
    PrivacyUnit.EXAMPLE: PoissonExamples,
    PrivacyUnit.SUBJECT: PoissonSubjects,
    PrivacyUnit.SILO: PoissonPooled,
}


def poisson(unit: PrivacyUnit) -> type[Poisson]:
    """The sampling of the papers by what is clipped as one.

    Users (ULS) or examples (ELS); in a silo, what was drawn of a subject, or all that was drawn.
    """
    return _POISSON[unit]


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
    "poisson",
]
