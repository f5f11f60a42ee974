"""The ε of users who hold less than the cap: fewer examples, better protection."""

from __future__ import annotations

from dataclasses import replace

from userdp.accounting.bracket import Bracket
from userdp.accounting.mechanisms import FixedBatchExamples, PoissonExamples
from userdp.guarantees import require_count, require_delta


def epsilon_by_examples(
    mechanism: PoissonExamples | FixedBatchExamples,
    delta: float,
    *,
    at_most: int | None = None,
) -> dict[int, Bracket]:
    """ε at ``delta`` of a user who holds k examples, for every k from 1 to G.

    Guarantee: `PoissonExamples` (or `FixedBatchExamples`) with ``group_size`` k is exactly the
    mechanism as seen by such a user: nothing else about it changes with k (Charles et al. 2024,
    Theorem 3 with |A| = k).

    Args:
        mechanism: ELS with its cap G.
        delta: in (0, 1).
        at_most: the largest k wanted; G by default.

    >>> els = PoissonExamples(
    ...     sampling_probability=0.01, group_size=3, noise_multiplier=1.0, steps=100
    ... )
    >>> [f"{found.upper:.3f}" for found in epsilon_by_examples(els, 1e-6).values()]
    ['0.954', '1.971', '2.983']
    """
    require_delta(delta)
    largest = mechanism.group_size
    if at_most is not None:
        largest = min(largest, require_count("at_most", at_most))
    return {k: replace(mechanism, group_size=k).epsilon(delta) for k in range(1, largest + 1)}
