"""What a step releases: the clip that bounds each unit, and the noise, its law and its price.

No torch here.
"""

from userdp.noise.gaussian import Gaussian

__all__ = ["Gaussian"]
