"""What the study runs: its texts, sizes, plans and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers.sized import plan_of_size
from userdp.plans import Plan
from userdp.sampling import PoissonExamples, PoissonUsers
from userdp.training.config import TrainConfig

TEXTS = ("commits", "shakespeare")
WHOLE = "shakespeare-whole"  # the same people of it, with all that they said
PLAIN = "without privacy"
ATTACKED = "against references"
RECORDS = 24
CHARACTERS = 200
SEQ_LEN = 64
POPULATION = 180  # users, declared
GROUP_SIZE = {"ULS": 2, "ELS": 4}
COHORT, BATCH = 16, 32
DELTA = 1e-4
STEPS = 30
LONG_STEPS = 300
LONGER_STEPS = 900  # without privacy, where LONG_STEPS left no trace
CANARIES = 64
REFERENCES = 2  # runs that the sharper attack compares with: 8 find little more (audit.md)
RIGHT = (1.0, 2.0, 4.0, 1.0, 4.0)  # for each algorithm; the last of ULS is the long run
BROKEN_EPSILON = 2.0
NOISELESS = 20.0  # the noise multiplier of a small claim, which a thousandth of is broken


def config(base: Path, *, learning_rate: float = 2e-3) -> TrainConfig:
    """All weights by AdamW, at a constant rate that nobody tuned."""
    return TrainConfig(
        model=str(base), learning_rate=learning_rate, warmup_steps=5, checkpoint_every=10_000
    )


def plan(
    algorithm: str, epsilon: float | None, *, steps: int, noise_multiplier: float | None = None
) -> Plan:
    """Thirty-two gradients of examples a step in expectation, at most."""
    common: dict[str, Any] = {
        "steps": steps,
        "group_size": GROUP_SIZE[algorithm],
        "l2_clip_norm": 0.5,
        "target_delta": DELTA,
        "target_epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
    }
    if algorithm == "ULS":
        return plan_of_size(PoissonUsers, population=POPULATION, size=COHORT, **common)
    return plan_of_size(PoissonExamples, population=4 * POPULATION, size=BATCH, **common)
