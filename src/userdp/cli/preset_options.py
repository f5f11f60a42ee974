"""The preset on the command line: it fills what the options of `train` do not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

from cyclopts import Parameter

from userdp.cli.plan_options import PlanOptions
from userdp.codec import encode
from userdp.training.config import TrainConfig, train_config

if TYPE_CHECKING:
    from userdp.plans.preset import Preset

_CHOSEN = ("delta", "group_size", "cohort_size", "steps", "l2_clip_norm")
"""What the preset chooses of a plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearningOptions(TrainConfig):
    """The options of `TrainConfig` but for the learning rate, which a preset may choose."""

    learning_rate: Annotated[float, Parameter(parse=False)] = TrainConfig().learning_rate


# Annotations of inherited options are names of another module, which the parser would look up here.
LearningOptions.__init__.__annotations__.update(
    get_type_hints(LearningOptions, include_extras=True)
)


def chosen_preset(
    path: Path | None,
    privacy: str,
    options: PlanOptions | None,
    config: TrainConfig | None,
) -> Preset | None:
    """The preset, where a budget and a population are all that says how to draw."""
    if path is not None or privacy == "none" or options is None or options.sampling is not None:
        return None
    if options.epsilon is None or options.population is None:
        return None
    from userdp.plans.preset import preset

    low_rank = config is not None and config.lora_rank is not None
    return preset(
        epsilon=options.epsilon,
        population=options.population,
        delta=options.delta,
        low_rank=low_rank,
    )


def filled(options: PlanOptions, chosen: Preset) -> PlanOptions:
    """The options, and where they say nothing what the preset chose."""
    values = {name: getattr(chosen, name) for name in _CHOSEN if getattr(options, name) is None}
    both: PlanOptions = replace(cast("Any", options), sampling="users", **values)
    return both


def given(options: PlanOptions | None, learning_rate: float | None) -> set[str]:
    """What of the preset's fields the operator chose."""
    own = {name for name in _CHOSEN if getattr(options, name, None) is not None}
    return own | (set() if learning_rate is None else {"learning_rate"})


def settings(
    config: TrainConfig | None, learning_rate: float | None, chosen_by: Preset | None
) -> TrainConfig | None:
    """How to train; None where nothing was said of it."""
    if config is None and learning_rate is None and chosen_by is None:
        return None
    rate = chosen_by.learning_rate if learning_rate is None and chosen_by else learning_rate
    values = encode(config or TrainConfig())
    chosen = train_config(values)
    return chosen if rate is None else replace(chosen, learning_rate=rate)
