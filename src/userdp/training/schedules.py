"""Learning-rate schedules, by the number of the step: in a private run, attempts charged."""

from __future__ import annotations

import math

from userdp.training.config import Schedule, TrainConfig

_COSINE_FLOOR = 0.05


def learning_rate(config: TrainConfig, *, step: int, steps: int) -> float:
    """The rate of step ``step`` (from 1) of ``steps``; greater than 0 at every one.

    >>> config = TrainConfig(learning_rate=1.0, warmup_steps=2, schedule=Schedule.LINEAR)
    >>> [learning_rate(config, step=t, steps=6) for t in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    span = max(1, steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps - 1) / span)
    match config.schedule:
        case Schedule.CONSTANT:
            factor = 1.0
        case Schedule.LINEAR:
            factor = 1.0 - done
        case Schedule.COSINE:
            factor = _COSINE_FLOOR + (1 - _COSINE_FLOOR) * (1 + math.cos(math.pi * done)) / 2
    return config.learning_rate * factor
