"""Conjecture 1 of Charles et al. 2024, checked with numbers.

The conjecture: with p = q and G_ELS = G_ULS = K, σ_ELS <= K·σ_ULS for every (ε, δ), T and p. As
δ falls in the noise, it says the same as: ELS with noise K·σ_ULS has nowhere a larger δ(ε) than
ULS with noise σ_ULS. Certified brackets decide each ε, or say that they cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from userdp.accounting.bracket import Bracket
from userdp.vocabulary import require_epsilon


class Verdict(StrEnum):
    """``HOLDS`` and ``FAILS`` are certified; ``UNDECIDED`` means that the brackets overlap."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConjectureCheck:
    """δ of both at one ε, and what follows."""

    examples_delta: Bracket
    users_delta: Bracket
    verdict: Verdict


def check_conjecture_1(
    examples_delta: Callable[[float], Bracket],
    users_delta: Callable[[float], Bracket],
    epsilon: float,
) -> ConjectureCheck:
    """Compare ELS at noise K·σ with ULS at noise σ, at one ε.

    Guarantee: ``HOLDS`` where the upper δ of ELS is at most the lower δ of ULS, ``FAILS`` where
    the lower δ of ELS exceeds the upper δ of ULS; the brackets are certified, so are these.

    Args:
        examples_delta: ε -> bracket of δ, ELS with group size K and noise multiplier K·σ.
        users_delta: ε -> bracket of δ, ULS with noise multiplier σ, same T and p = q.
        epsilon: finite, >= 0.

    Raises:
        ValueError: ``epsilon`` is out of range (NaN included).

    Source: Charles et al. 2024, Conjecture 1. For RDP at integer orders, one step, it is
    Lemma 1, which a test of `userdp.accounting.rdp` checks.
    """
    require_epsilon(epsilon)
    examples, users = examples_delta(epsilon), users_delta(epsilon)
    verdict = Verdict.UNDECIDED
    if examples.upper <= users.lower:
        verdict = Verdict.HOLDS
    elif examples.lower > users.upper:
        verdict = Verdict.FAILS
    return ConjectureCheck(examples_delta=examples, users_delta=users, verdict=verdict)
