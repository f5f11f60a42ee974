"""Norms and requests that tests share."""

import math

import pytest

from userdp.plans.gradient_norms import GradientNorms
from userdp.plans.planner import Request
from userdp.plans.provenance import Provenance


def synthetic_norms(*, shared: float = 0.2, own: float = 1.0, most: int = 64, **changes):
    """|mean of G gradients|² = shared + own/G: a direction all share, and independent rests."""
    values = {
        "model": "synthetic",
        "users": 128,
        "user_norms": {
            2**k: math.sqrt(shared + own / 2**k) for k in range(most.bit_length()) if 2**k <= most
        },
        "example_norm": math.sqrt(shared + own),
        "source": Provenance.PUBLIC,
    }
    return GradientNorms(**{**values, **changes})


def request(**changes) -> Request:
    values = {
        "epsilon": 4.0,
        "delta": 1e-6,
        "budget": 64.0,
        "steps": 50,
        "norms": synthetic_norms(most=8),
        "population": 1000,
        "median_examples": 6,
    }
    return Request(**{**values, **changes})


@pytest.fixture
def norms() -> GradientNorms:
    return synthetic_norms()
