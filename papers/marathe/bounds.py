r"""The excess population loss that Marathe et al. 2023, Section 4, bound for convex losses.

.. math:: \frac{M^2}{2ηT} + \frac{ηL^2}{2} + η d σ^2 + \frac{L^2 η (T+1)}{n}

for SGD over T steps with noise of variance σ² in each of d coordinates of a step's gradient. The
paper puts σ in by Theorem 3.1, with constants it does not know (Theorems 4.8, 4.9 and 4.11); here σ
is the one that was used, so the bound can be held beside a measured loss. It assumes that the loss
is convex and L-Lipschitz, which holds for no network: beside one, it shows orders of size at best.
"""

from __future__ import annotations


def excess_loss_bound(
    *,
    radius: float,
    lipschitz: float,
    learning_rate: float,
    steps: int,
    dimensions: int,
    items: int,
    noise_std: float,
    group_size: int = 1,
) -> float:
    """The bound of Theorem 4.6 with Lemma 4.7 or, for HiGradAvgDP, Lemma 4.10.

    Args:
        radius: M, of the parameter space, around the start.
        lipschitz: L; the clip norm, for clipped gradients.
        learning_rate: η.
        steps: T.
        dimensions: d.
        items: n.
        noise_std: σ, of a step's averaged gradient, in each coordinate; 0 without noise.
        group_size: 1 for LocalItemDP, LocalGroupDP and UserLDP (Theorems 4.8 and 4.9), whose
            groups show in σ alone. For HiGradAvgDP (Theorem 4.11) the k by which its averages
            scale gradients down: k M²/(2ηT) + η L²/(2k) in place of the first two terms.

    >>> flat = excess_loss_bound(radius=1, lipschitz=1, learning_rate=0.1, steps=100,
    ...     dimensions=10, items=1000, noise_std=0.0)
    >>> round(flat, 4)  # 0.05 + 0.05 + 0 + 0.0101
    0.1101
    """
    k, eta = group_size, learning_rate
    distance = k * radius**2 / (2 * eta * steps)
    spread = eta * lipschitz**2 / (2 * k)
    noise = eta * dimensions * noise_std**2
    stability = lipschitz**2 * eta * (steps + 1) / items
    return distance + spread + noise + stability
