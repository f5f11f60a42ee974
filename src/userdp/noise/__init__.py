"""The noise of the steps: its law, its price and the size of its state. No torch here."""

from userdp.noise.base import NoiseLaw
from userdp.noise.gaussian import Gaussian

__all__ = ["Gaussian", "NoiseLaw"]
