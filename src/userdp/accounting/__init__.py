"""From a mechanism to a certified (ε, δ), and back from a budget to the least noise."""

from userdp.accounting.bracket import Bracket
from userdp.accounting.calibration import calibrate
from userdp.accounting.mechanisms import Mechanism, PoissonExamples, PoissonUsers, SampledMechanism

__all__ = [
    "Bracket",
    "Mechanism",
    "PoissonExamples",
    "PoissonUsers",
    "SampledMechanism",
    "calibrate",
]
