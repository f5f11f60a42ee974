"""From a mechanism to a certified (ε, δ), and back from a budget to the least noise."""

from userdp.accounting.accountants import Accountant, calibrate_by, epsilon_by
from userdp.accounting.bracket import Bracket
from userdp.accounting.calibration import calibrate
from userdp.accounting.holders import epsilon_by_examples
from userdp.accounting.mechanisms import (
    Composition,
    FixedBatchExamples,
    FixedBatchUsers,
    FullParticipation,
    Mechanism,
    PoissonExamples,
    PoissonUsers,
    PureQuery,
    SampledMechanism,
    TruncatedPoisson,
)
from userdp.accounting.tradeoff import DeltaCurve, delta_curve

__all__ = [
    "Accountant",
    "Bracket",
    "Composition",
    "DeltaCurve",
    "FixedBatchExamples",
    "FixedBatchUsers",
    "FullParticipation",
    "Mechanism",
    "PoissonExamples",
    "PoissonUsers",
    "PureQuery",
    "SampledMechanism",
    "TruncatedPoisson",
    "calibrate",
    "calibrate_by",
    "delta_curve",
    "epsilon_by",
    "epsilon_by_examples",
]
