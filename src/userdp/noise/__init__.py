"""The noise of the steps: its law and its price. No torch here."""

from userdp.noise.gaussian import Gaussian

__all__ = ["Gaussian"]
