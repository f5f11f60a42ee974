"""Noise on zeros, from a source made as the run's own was: what the checks of noise look at."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from userdp.gradients.shards import local
from userdp.training.checks.subject import Subject

Floats = NDArray[np.float64]

_MOST_OF_ONE, _MOST = 1 << 20, 1 << 24
"""Numbers that are drawn for one parameter, and for all."""
_ENOUGH = 1 << 15
"""Numbers by which a standard deviation that is 4% off is seen; small models draw several times."""
_MOST_ROUNDS = 64


def drawn(subject: Subject) -> list[dict[str, Floats]]:
    """Noise of at least two steps, by parameter, in standard deviations.

    Of each parameter the first numbers, at most 2^20; of a sharded one, of this process's part. Of
    a law with memory each step is the first one of a source of its own, since only what is drawn
    anew is known to have the plan's deviation; a source with a known seed is then made once.
    """
    sizes = {name: local(p).numel() for name, p in subject.parameters.items()}
    cap = max(1, min(_MOST_OF_ONE, _MOST // len(sizes)))
    shapes = {
        name: local(p).shape if sizes[name] <= cap else torch.Size([cap])
        for name, p in subject.parameters.items()
    }
    count = sum(shape.numel() for shape in shapes.values())
    if subject.scattered:  # no process may draw more often than another
        count = min(subject.world.all_gather_object(count))
    rounds = max(2, min(_MOST_ROUNDS, math.ceil(_ENOUGH / max(1, count))))
    afresh = subject.law.memory > 0
    if afresh and subject.known_noise:
        rounds = 1
    source = subject.noise()
    steps = []
    for step in range(rounds):
        if step and afresh:
            source = subject.noise()
        value = {
            name: torch.zeros(shape, dtype=torch.float64, device=subject.device)
            for name, shape in shapes.items()
        }
        source.add_(value, subject.noise_std)
        steps.append({n: v.cpu().numpy().ravel() / subject.noise_std for n, v in value.items()})
    return steps
