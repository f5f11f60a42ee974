"""The contour accountant: certified (epsilon, delta) of composed mixtures of Gaussians.

Derivation and proofs: docs/accounting.md.
"""

from userdp.accounting.contour.curve import delta_bracket, epsilon_bracket
from userdp.accounting.contour.losses import Phase, phase_of

__all__ = ["Phase", "delta_bracket", "epsilon_bracket", "phase_of"]
