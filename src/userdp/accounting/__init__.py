"""From a mechanism to a certified (ε, δ), and back from a budget to the least noise."""

from userdp.accounting.accountants import Accountant, calibrate, epsilon_by
from userdp.accounting.bracket import Bracket
from userdp.accounting.item_count_laws import Binomial, Hypergeometric
from userdp.accounting.mechanisms import (
    Capped,
    Exchanged,
    Mixture,
    NoisySteps,
    binomial_steps,
    gaussian_steps,
    hypergeometric_steps,
)
from userdp.accounting.tradeoff import DeltaCurve

__all__ = [
    "Accountant",
    "Binomial",
    "Bracket",
    "Capped",
    "DeltaCurve",
    "Exchanged",
    "Hypergeometric",
    "Mixture",
    "NoisySteps",
    "binomial_steps",
    "calibrate",
    "epsilon_by",
    "gaussian_steps",
    "hypergeometric_steps",
]
