"""A plan's constants side by side, each named as in the papers, and samplers in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from userdp.guarantees import Sampling, delta_up
from userdp.plan import Plan
from userdp.reporting.run_facts import RunFacts

_MISSING = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """One constant of all runs: its name, what it is, and its value in each run."""

    name: str
    what: str
    values: tuple[str, ...]


def sampler_in_words(run: RunFacts) -> str:
    """How a step draws its data.

    A plan that shuffles claims nothing; its words say so.
    """
    plan = run.plan
    if plan is None:
        return "no private sampler"
    if plan.unsafe_shuffle:
        return "shuffled batches"
    what = "users" if plan.sampling is Sampling.USERS else "examples"
    symbol = "q" if plan.sampling is Sampling.USERS else "p"
    return (
        f"Poisson sampling of {what} ({plan.algorithm}, {symbol} = {plan.sampling_probability:.6g})"
    )


def constants_of(runs: Sequence[RunFacts]) -> list[Constant]:
    """The constants of the plans, then the settings that privacy does not depend on."""
    rows = [
        Constant(name=name, what=what, values=tuple(_plan_value(run.plan, read) for run in runs))
        for name, what, read in _PLAN
    ]
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows += [
        Constant(
            name=name.replace("_", " "),
            what=_SETTINGS.get(name, ""),
            values=tuple(run.settings.get(name, _MISSING) for run in runs),
        )
        for name in names
    ]
    return [row for row in rows if any(value != _MISSING for value in row.values)]


def _plan_value(plan: Plan | None, read: str) -> str:
    if plan is None:
        return _MISSING
    value = getattr(plan, read)
    if value is None:
        return _MISSING
    if isinstance(value, int):
        return f"{value:,}"
    if read == "target_delta":
        return delta_up(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_PLAN = (
    ("algorithm", "sampled are whole users (ULS) or examples (ELS)", "algorithm"),
    ("steps T", "noisy updates planned", "steps"),
    ("group size G", "most examples of a user in a step (ULS) or the set (ELS)", "group_size"),
    ("sampling probability", "of each user (ULS, q) or example (ELS, p) per step",
     "sampling_probability"),
    ("declared population", "a constant of the plan, not a count of the data", "population"),
    ("denominator", "expected users (ULS) or examples (ELS) per step, if the population is right",
     "denominator"),
    ("noise multiplier σ", "noise divided by the clip norm", "noise_multiplier"),
    ("clip norm C", "of each unit's gradient", "l2_clip_norm"),
    ("clipping", "an adaptive clip norm starts at C, and its count is part of σ", "clipping"),
    ("clip norm per example", "before the unit's", "item_clip_norm"),
    ("target δ", "fixed with the plan", "target_delta"),
    ("target ε", "what the noise was chosen for", "target_epsilon"),
)  # fmt: skip

_SETTINGS = {
    "model": "training began with its public weights",
    "seq_len": "most tokens of an example",
    "learning_rate": "its peak",
    "lora_rank": "of the adapters trained in place of all weights",
    "selection": "which of a user's examples train, where there are more than G",
    "averaging": "of the weights released; free post-processing",
}
