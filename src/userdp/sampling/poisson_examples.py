"""Poisson sampling of examples (ELS): each example joins each step by a coin of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from userdp.sampling.base import Words
from userdp.sampling.poisson_users import Poisson
from userdp.vocabulary import PrivacyUnit

OPTIONS = {
    "group_size": "most examples of a user in all training",
    "sampling_probability": "p, of each example at each step",
}


@dataclass(frozen=True, kw_only=True)
class PoissonExamples(Poisson):
    """ELS: each example joins each step independently with probability p; G examples per user.

    Guarantee: T steps of DP-SGD-ELS (Charles et al. 2024, Algorithm 1) on data to which no user
    contributes more than G examples are dominated, per user under add-or-remove adjacency, by
    N(Binom(G, p), σ²)^T against N(0, σ²)^T (Theorems 1 and 3; Ganesh 2024, Theorem 3.1). The bound
    is attained. Under zero-out adjacency it is the same pair: zeroed examples change nothing in the
    sum when they are drawn.
    """

    kind: ClassVar[str] = "examples"
    algorithm: ClassVar[str] = "ELS"
    unit: ClassVar[PrivacyUnit] = PrivacyUnit.EXAMPLE
    words: ClassVar[Words] = Words(
        title="Poisson sampling of examples",
        draw="each example joins each step independently with probability p",
        options=OPTIONS,
        symbols={"sampling_probability": "p"},
    )
