"""Default generators in states that everybody knows, as after ``torch.manual_seed(0)``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from userdp.gradients.model_randomness import GeneratorStates, generators


@contextmanager
def seeded() -> Iterator[None]:
    """Within, every default generator was seeded with 0; afterwards they are as they were.

    Not by torch.manual_seed, which would also seed, some day, a device that sleeps now.
    """
    before = GeneratorStates.read()
    try:
        for generator in generators().values():
            generator.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        yield
    finally:
        before.load()
