"""Invariant 14: masks inside the model are those of nobody's seed, and one unit's are drawn once.

A step's masks are asked for twice, each time after every default generator was seeded with 0: what
is drawn within the step, and, of a model that draws, the gradient of one made-up unit. Of the
latter the norm that clips and the gradient that is added must be of equal masks: then the sum of
the one unit, unclipped, has that norm.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch

from userdp.gradients.engines.sharded import nobody
from userdp.gradients.losses import row_losses
from userdp.gradients.model_randomness import (
    GeneratorStates,
    known_randomness,
    secret_randomness,
)
from userdp.gradients.shards import let_go
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.public_seeds import seeded
from userdp.training.checks.subject import Subject

_UNCLIPPED = 1e15


def _measure(subject: Subject) -> Iterator[Measured]:
    one, other = _drawn(subject), _drawn(subject)
    yield Measured(
        what="default generators that gave the same numbers in two steps, after equal public seeds",
        value=float(sum(a == b for a, b in zip(one, other, strict=True))),
        bound=0,
    )
    if subject.squares is None or not _draws(subject):
        return
    unit = subject.units.select(2, 3)  # of several rows
    norms = []
    for _ in range(2):
        with seeded():
            total = subject.sum_of(unit, _UNCLIPPED)
        norms.append(float(total.norms[0]))
        norm = sum(subject.squared(total.value).values()) ** 0.5
        yield Measured(
            what="how far a unit's norm is from that of what it adds, relative",
            value=abs(norms[-1] - norm) / max(norm, 1e-30),
            bound=subject.close,
        )
    yield Measured(
        what="whether a unit's gradient came again in another step, after equal public seeds",
        value=float(norms[0] == norms[1]),
        bound=0,
    )


def _drawn(subject: Subject) -> tuple[object, ...]:
    """Some numbers of each default generator, as a step finds it."""
    with seeded(), secret_randomness():
        here = {torch.device("cpu"), subject.device}
        return (
            *(tuple(torch.rand(4, device=device).tolist()) for device in here),
            tuple(np.random.random_sample(4).tolist()),
            tuple(random.random() for _ in range(4)),
        )


def _draws(subject: Subject) -> bool:
    """Whether the model draws, on a made-up row."""
    model, units = subject.model, nobody(subject.model, masked=subject.masked)
    with secret_randomness(), known_randomness("made-up rows"), let_go(model), torch.no_grad():
        before = GeneratorStates.read()
        row_losses(subject.loss, model, *units.all_rows())
        return GeneratorStates.read() != before


CHECK = Check(
    name="masks",
    invariant=14,
    claim="masks inside the model are secret, and those of a unit are drawn once",
    measure=_measure,
    by_engine=True,
)
