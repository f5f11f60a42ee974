"""A run from a budget and a declared population: what `userdp.plans.preset` chose, and said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from userdp.commands.progress import say
from userdp.errors import UseError
from userdp.plans import Plan
from userdp.plans.preset import preset

if TYPE_CHECKING:
    from userdp.training.config import TrainConfig


def by_preset(
    plan: object,
    config: TrainConfig | None,
    options: dict[str, Any],
    *,
    epsilon: float | None,
    population: int | None,
    delta: float | None,
) -> tuple[Plan, dict[str, Any]]:
    """The plan of the preset, which is said on stderr, and the options with its learning rate."""
    if plan is not None:
        raise UseError(
            "a plan says it all, and a preset would choose another",
            hint="leave epsilon, population and delta out, or the plan",
        )
    if epsilon is None or population is None:
        raise UseError(
            "a preset needs a budget and a declared number of users: noise and every denominator "
            "are made of them",
            hint="give both --epsilon and --population",
        )
    low_rank = config.lora_rank if config is not None else options.get("lora_rank")
    chosen = preset(
        epsilon=epsilon, population=population, delta=delta, low_rank=low_rank is not None
    )
    given = {"learning_rate"} & options.keys() if config is None else {"learning_rate"}
    made = chosen.plan()
    say(chosen.sentence(given | ({"delta"} if delta is not None else set())))
    if not given:
        options = options | {"learning_rate": chosen.learning_rate}
    return made, options
