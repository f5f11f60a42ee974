"""δ(ε) enclosed anew by ball arithmetic, without a line of the contour accountant.

The derivation is docs/proof.md. It proves numbers, not that a pair of laws dominates an algorithm.
"""

from userdp.accounting.proof.enclosure import Enclosure, enclose_delta
from userdp.accounting.proof.line_sum import OneWay
from userdp.accounting.proof.step_law import Steps

__all__ = ["Enclosure", "OneWay", "Steps", "enclose_delta"]
