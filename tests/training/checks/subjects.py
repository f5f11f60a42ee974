"""What `userdp selftest` would ask of a test's model and plan, and what did not hold."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from userdp.gradients import causal_lm_loss
from userdp.plans import Plan
from userdp.sampling.coins import secret_generator
from userdp.training.checks.every import verdicts
from userdp.training.checks.subject import Subject
from userdp.training.distributed import current_world
from userdp.training.distributed_run import shared_secret
from userdp.training.questions import engine_of
from userdp.training.shared_noise import source_for


def subject_of(
    model: nn.Module,
    plan: Plan,
    *,
    engine: str = "auto",
    unsafe_noise_seed: int | None = None,
    **changes: Any,
) -> Subject:
    """As a run of ``plan`` would compute, on all processes of this world."""
    world = current_world()
    values: dict[str, Any] = {
        "model": model,
        "loss": causal_lm_loss,
        "masked": False,
        "engine": engine_of(model, engine),
        "clip": plan.clip,
        "sampling": plan.sampling,
        "law": plan.noise,
        "noise_std": plan.noise_std,
        "noise": partial(source_for, world, model, plan.noise, unsafe_noise_seed=unsafe_noise_seed),
        "coins": lambda: secret_generator(shared_secret(world)),
        "known_noise": unsafe_noise_seed is not None,
        "longest": 8,
        "world": world,
    }
    return Subject(**{**values, **changes})


def failures(subject: Subject) -> list[str]:
    """What did not hold, in words."""
    return [str(verdict) for verdict in verdicts(subject) if not verdict.passed]
