"""The contour accountant: certified (epsilon, delta) of T equal mixtures of Gaussians.

Derivation and proofs: docs/accounting.md.
"""

from userdp.accounting.contour.curve import delta_bracket, epsilon_bracket
from userdp.accounting.contour.privacy_loss import Pair, pair_of

__all__ = ["Pair", "delta_bracket", "epsilon_bracket", "pair_of"]
