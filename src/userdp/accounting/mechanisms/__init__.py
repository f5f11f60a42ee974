"""What a run does, as frozen values that know their price.

A mechanism is a tuple of public constants, fixed before any private look. ``epsilon(delta)`` and
``delta(epsilon)`` return a certified `Bracket`; report its ``upper``.
"""

from userdp.accounting.mechanisms.base import Mechanism, SampledMechanism
from userdp.accounting.mechanisms.poisson import PoissonExamples, PoissonUsers

__all__ = ["Mechanism", "PoissonExamples", "PoissonUsers", "SampledMechanism"]
