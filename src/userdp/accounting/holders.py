"""The ε of users who hold less than the cap: fewer items, better protection."""

from __future__ import annotations

from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms import NoisySteps
from userdp.vocabulary import require_count, require_delta


def epsilon_by_items(
    mechanism: NoisySteps, delta: float, *, at_most: int | None = None
) -> dict[int, Bracket]:
    """ε at ``delta`` of a user who holds k items, for every k from 1 to the mechanism's most.

    Guarantee: ``mechanism.of(k)`` is exactly the mechanism as seen by such a user: nothing else
    about it changes with k (Charles et al. 2024, Theorem 3 for a set A of k examples).

    Args:
        mechanism: example-level sampling with its cap G.
        delta: in (0, 1).
        at_most: the largest k wanted; G by default.

    >>> from userdp.accounting.mechanisms import Binomial, Mixture
    >>> law = Binomial(trials=3, probability=0.01)
    >>> els = Mixture(law=law, noise_multiplier=1.0, steps=100)
    >>> [f"{bracket.upper:.3f}" for bracket in epsilon_by_items(els, 1e-6).values()]
    ['0.954', '1.971', '2.983']
    """
    require_delta(delta)
    largest = mechanism.items
    if at_most is not None:
        largest = min(largest, require_count("at_most", at_most))
    return {k: mechanism.of(k).epsilon(delta) for k in range(1, largest + 1)}
