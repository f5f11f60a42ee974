r"""The excess population loss that Marathe et al. 2023, Section 4, bound for convex losses.

.. math:: \frac{M^2}{2ηT} + \frac{ηL^2}{2} + η d σ^2 + \frac{L^2 η (T+1)}{n}

for SGD over T steps with noise of variance σ² in each of d coordinates of a step's gradient. The
paper puts σ in by Theorem 3.1, with constants it does not know (Theorems 4.8, 4.9 and 4.11); here σ
is the one that was used, so the bound can be held beside a measured loss. It assumes that the loss
is convex and L-Lipschitz, which holds for no network: beside one, it shows orders of size at best.
"""

from __future__ import annotations

from dataclasses import dataclass

from userdp.vocabulary import require_count, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Descent:
    """Noisy gradient descent, as Section 4 sees it.

    Args:
        radius: M, of the parameter space, around the start.
        lipschitz: L; the clip norm, for clipped gradients.
        learning_rate: η.
        steps: T.
        dimensions: d.
        items: n.
        noise_std: σ, of a step's averaged gradient, in each coordinate; 0 without noise.
    """

    radius: float
    lipschitz: float
    learning_rate: float
    steps: int
    dimensions: int
    items: int
    noise_std: float

    def __post_init__(self) -> None:
        for name in ("radius", "lipschitz", "learning_rate"):
            require_positive(name, getattr(self, name))
        for name in ("steps", "dimensions", "items"):
            require_count(name, getattr(self, name))
        if not 0 <= self.noise_std < float("inf"):
            require_positive("noise_std", self.noise_std)

    @property
    def stability(self) -> float:
        """L² η (T + 1)/n: the last term of Theorem 4.6."""
        return self.lipschitz**2 * self.learning_rate * (self.steps + 1) / self.items

    def excess_loss(self, *, group_size: int = 1) -> float:
        """The bound of Theorem 4.6 with Lemma 4.7 or, for HiGradAvgDP, Lemma 4.10.

        Args:
            group_size: 1 for LocalItemDP, LocalGroupDP and UserLDP (Theorems 4.8 and 4.9), whose
                groups show in σ alone. For HiGradAvgDP (Theorem 4.11) the k by which its averages
                scale gradients down: k M²/(2ηT) + η L²/(2k) in place of the first two terms.

        >>> flat = Descent(radius=1, lipschitz=1, learning_rate=0.1, steps=100, dimensions=10,
        ...     items=1000, noise_std=0.0)
        >>> round(flat.excess_loss(), 4)  # 0.05 + 0.05 + 0 + 0.0101
        0.1101
        """
        k = require_count("group_size", group_size)
        eta = self.learning_rate
        distance = k * self.radius**2 / (2 * eta * self.steps)
        spread = eta * self.lipschitz**2 / (2 * k)
        noise = eta * self.dimensions * self.noise_std**2
        return distance + spread + noise + self.stability
