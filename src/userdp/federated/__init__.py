"""Subject-level privacy across silos (Marathe et al. 2023), on Flower.

A *silo* holds part of many *subjects'* items and trusts neither the server nor the other silos:
it clips and noises by itself, writes its own ledger, and sends a noisy update and nothing else.
"""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "claim": ("FederationClaim", "federation_claim"),
    "plan": ("FederationPlan", "LanguageModel", "LeafCNN"),
    "silo": ("Silo",),
    "simulation": ("claim_of", "make_federation", "run_flower", "run_in_process"),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
