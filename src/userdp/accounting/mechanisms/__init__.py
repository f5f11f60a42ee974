"""What a run does, as frozen values that know their price.

A mechanism is a tuple of public constants, fixed before any private look. ``epsilon(delta)`` and
``delta(epsilon)`` return a certified `Bracket`; report its ``upper``.
"""

from userdp.accounting.mechanisms.base import Mechanism, MixtureMechanism, SampledMechanism
from userdp.accounting.mechanisms.composition import Composition
from userdp.accounting.mechanisms.fixed_batch import FixedBatchExamples, FixedBatchUsers
from userdp.accounting.mechanisms.fixed_graph import FixedGraphExamples
from userdp.accounting.mechanisms.full import FullParticipation
from userdp.accounting.mechanisms.poisson import PoissonExamples, PoissonUsers
from userdp.accounting.mechanisms.pure import PureQuery
from userdp.accounting.mechanisms.truncated import TruncatedPoisson

__all__ = [
    "Composition",
    "FixedBatchExamples",
    "FixedBatchUsers",
    "FixedGraphExamples",
    "FullParticipation",
    "Mechanism",
    "MixtureMechanism",
    "PoissonExamples",
    "PoissonUsers",
    "PureQuery",
    "SampledMechanism",
    "TruncatedPoisson",
]
