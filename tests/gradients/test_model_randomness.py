"""Invariant 14: what a model draws is secret, in full width; the caller's streams run on."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.gradients.tiny import VOCABULARY, Logits, Small, length, ragged
from userdp.core.errors import FailureError
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.model_randomness import (
    GeneratorStates,
    secret_randomness,
)

UNITS = Units.from_rows(ragged((2, 1)))


def drawn(count: int = 4) -> tuple[list[float], list[float], list[float]]:
    """From each of the three generators of a CPU."""
    return (
        torch.rand(count).tolist(),
        np.random.random(count).tolist(),
        [random.random() for _ in range(count)],
    )


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def test_invariant_14_numbers_within_are_not_those_of_a_public_seed_and_never_the_same_twice():
    seen = []
    for _ in range(3):
        seed_all(0)
        with secret_randomness():
            seen.append(drawn())
    seed_all(0)
    seen.append(drawn())
    for which in range(3):
        assert len({tuple(numbers[which]) for numbers in seen}) == 4


def state_follows_from_its_seed() -> bool:
    """Whether all of torch's state is a function of the number that the generator calls its seed.

    Of that number a CPU generator keeps 32 bits, so that such a state can be found by trying.
    """
    twin = torch.Generator().manual_seed(torch.initial_seed())
    return torch.equal(twin.get_state(), torch.get_rng_state())


@pytest.mark.pitfall(number=31)
def test_invariant_14_states_are_drawn_in_full_width() -> None:
    with secret_randomness():
        assert not state_follows_from_its_seed()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.SystemRandom().getrandbits(63))  # broken twin
        assert state_follows_from_its_seed()


@pytest.mark.parametrize("fails", [False, True])
def test_afterwards_the_callers_streams_run_on_as_if_nothing_had_been(fails):
    """Half-used pairs of normal numbers are part of the state."""

    def go_on() -> tuple[object, ...]:
        normal = torch.randn(3).tolist(), np.random.normal(size=3).tolist(), random.gauss(0, 1)
        return drawn(), normal

    seed_all(3)
    expected = go_on(), go_on()
    seed_all(3)
    first = go_on()
    with suppress(KeyError), secret_randomness():
        go_on(), drawn(1000)
        if fails:
            raise KeyError("some error")
    assert (first, go_on()) == expected


@pytest.mark.parametrize("seed", [torch.manual_seed, lambda _: torch.seed()])
def test_who_seeds_within_is_stopped(seed):
    torch.manual_seed(1)
    before = GeneratorStates.read()
    with pytest.raises(FailureError, match="seeded"), secret_randomness():
        seed(0)
    assert GeneratorStates.read() == before


def recomputed(m: Any, tokens: Tensor, vectors: Tensor) -> Logits:
    """By hand: of a model of `transformers` that does so the switch is refused."""
    again = {"use_reentrant": False, "preserve_rng_state": False}
    return Logits(m.head(checkpoint(F.dropout, vectors, 0.5, **again)))


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_recomputation_under_other_masks_moves_the_sum_by_at_most_the_clip_norm(engine):
    """Whatever masks its backward pass draws: the norm is that of the numbers that are added."""
    model, one = Small(recomputed, head=lambda: nn.Linear(6, VOCABULARY)), UNITS.select(0, 1)
    norm = float(get_engine(engine)(model, causal_lm_loss, one, l2_clip_norm=1e3).norms[0])
    for _ in range(4):
        found = get_engine(engine)(model, causal_lm_loss, one, l2_clip_norm=norm / 8)
        assert length(found) <= norm / 8 * (1 + 1e-6)
