"""Test seeds by which a step's cohort, masks and noise are functions of its number alone.

So an interrupted run that lost no step ends with the weights of one that nobody interrupted, to the
last bit, and one that lost some with those of a run that left the updates of the same steps out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.faults.crashes.witness import Witness
from userdp.gradients.noise import NoiseSource
from userdp.sampling.cohort import Sampler
from userdp.training import loop, steps
from userdp.training.optimizers import MovementCheck


def install(witness: Witness, *, left_out: frozenset[int] = frozenset()) -> None:
    """Seed every step from now on.

    Args:
        witness: knows which step was charged last.
        left_out: steps whose update the trainer of ``userdp train`` does not apply.
    """
    draw, secret, own_seed = Sampler.draw, steps.secret_randomness, NoiseSource._seed
    build, moved = loop.build_optimizer, MovementCheck.require_moved

    def words(kind: str) -> int:
        text = f"{kind}/{witness.ledger}/{witness.step}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest())

    drawn: Counter[int] = Counter()

    def seed(source: NoiseSource) -> np.random.SeedSequence:
        if not witness.stepping:
            return own_seed(source)
        step = words("noise")
        drawn[step] += 1
        return np.random.SeedSequence(step, spawn_key=(drawn[step],), pool_size=8)

    def draw_again(sampler: Sampler) -> Any:
        if not witness.stepping:
            return draw(sampler)
        seeds = np.random.SeedSequence(words("cohort"), pool_size=8)
        sampler._generator.bit_generator.state = np.random.PCG64DXSM(seeds).state
        return draw(sampler)

    def masks(key: str | None = None) -> Any:
        return secret(f"{words('masks')}")

    def build_optimizer(*arguments: Any, **options: Any) -> Any:
        optimizer = build(*arguments, **options)
        step = optimizer.step

        def apply(*given: Any, **named: Any) -> Any:
            return None if witness.step in left_out else step(*given, **named)

        if left_out:
            optimizer.step = apply
        return optimizer

    def require_moved(check: MovementCheck) -> bool:
        """A run whose first update was lost went on from where it was; nothing moves then."""
        return witness.step not in left_out and moved(check)

    # Methods of the library are exchanged: it has no way by which known seeds could reach a run
    # that claims something, and must not get one.
    NoiseSource._seed = seed
    Sampler.draw = draw_again
    steps.secret_randomness = masks
    loop.build_optimizer = build_optimizer
    MovementCheck.require_moved = require_moved
