"""The noise of a step: its law and its price. No torch here."""

from userdp.noise.gaussian import Gaussian

__all__ = ["Gaussian"]
