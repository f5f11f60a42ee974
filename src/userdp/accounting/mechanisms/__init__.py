"""What a run does, as frozen values that know their price.

A mechanism is a tuple of public constants, fixed before any private look. ``epsilon(delta)`` and
``delta(epsilon)`` return a certified `Bracket`; report its ``upper``. No sampling is named here:
each says in `userdp.sampling` which of these dominates it.
"""

from userdp.accounting.laws import Binomial, Hypergeometric, Law
from userdp.accounting.mechanisms.base import Mechanism, NoisySteps
from userdp.accounting.mechanisms.capped import Capped
from userdp.accounting.mechanisms.composition import Composition
from userdp.accounting.mechanisms.exchanged import Exchanged
from userdp.accounting.mechanisms.mixture import (
    Mixture,
    binomial_steps,
    gaussian_steps,
    hypergeometric_steps,
)
from userdp.accounting.mechanisms.pure import PureQuery

__all__ = [
    "Binomial",
    "Capped",
    "Composition",
    "Exchanged",
    "Hypergeometric",
    "Law",
    "Mechanism",
    "Mixture",
    "NoisySteps",
    "PureQuery",
    "binomial_steps",
    "gaussian_steps",
    "hypergeometric_steps",
]
