"""A plan's constants side by side, each named as in the papers, and samplers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from userdp.plans import Plan
from userdp.plans.origin import in_words
from userdp.reporting.numbers import delta_text, number_text
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.table import MISSING, Table


def sampler_in_words(run: RunFacts) -> str:
    """How a step draws its data.

    A plan that shuffles claims nothing; its words say so.
    """
    plan = run.plan
    if plan is None:
        return "no private sampler"
    words = plan.sampling.words
    values = ", ".join(
        f"{symbol} = {number_text(getattr(plan.sampling, name))}"
        for name, symbol in words.symbols.items()
    )
    return f"{words.title} ({plan.algorithm}, {values})" if values else words.title


def constants_of(runs: Sequence[RunFacts]) -> Table:
    """The constants of the plans, then the settings that privacy does not depend on."""
    plans = [run.plan for run in runs]
    rows = [
        (name, *(_shown(plan and read(plan)) for plan in plans), what)
        for name, what, read in (*_FIRST, *_drawn(plans), _population(runs), *_LAST)
    ]
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows += [
        (
            name.replace("_", " "),
            *(run.settings.get(name, MISSING) for run in runs),
            _SETTINGS.get(name, ""),
        )
        for name in names
    ]
    return Table(
        caption="Constants of each run",
        columns=("Constant", *(run.name for run in runs), "What it is"),
        rows=[row for row in rows if any(value != MISSING for value in row[1:-1])],
    )


def told_once(constants: Table) -> tuple[Table, list[tuple[str, str]]]:
    """The constants that differ between several runs, and those that are the same in all.

    Returns:
        The table of the former, without what they mean; and names and values of the latter. Of one
        run there is the whole table.
    """
    if len(constants.columns) < 4:
        return constants, []
    same = [row for row in constants.rows if len(set(row[1:-1])) == 1]
    differ = [row[:-1] for row in constants.rows if len(set(row[1:-1])) > 1]
    table = replace(constants, rows=differ, columns=constants.columns[:-1])
    return table, [(row[0], row[1]) for row in same]


def _population(runs: Sequence[RunFacts]) -> tuple[str, str, Callable[[Plan], Any]]:
    """The row of the population: what was looked up in the data, under DP or not, is not declared.

    Where it was looked up its name says so, as the model card shows names and values alone.
    """
    origins = {
        run.name: in_words(looked_up)
        for run in runs
        if run.plan is not None
        # Of examples ("population.examples") or of users: either decides a plan of examples.
        and (looked_up := {k: v for k, v in run.plan.origins.items() if k.startswith("population")})
    }
    whence = "; ".join(dict.fromkeys(origins.values()))
    if not origins:
        name, what = "declared population", "a constant of the plan, not a count of the data"
    elif len(runs) == 1:
        name, what = f"population, from {whence}", "a constant of the plan"
    else:
        told = "; ".join(f"of {run} from {words}" for run, words in origins.items())
        name, what = "population", f"a constant of the plan: {told}"
    return name, what, lambda plan: plan.population


def _drawn(plans: Sequence[Plan | None]) -> Iterator[tuple[str, str, Callable[[Plan], Any]]]:
    """A row for each constant of the samplings, with what the samplings say it means."""
    told: dict[str, list[str]] = {}
    for plan in plans:
        for name, what in plan.sampling.words.options.items() if plan else ():
            if what not in told.setdefault(name, []):
                told[name].append(what)
    for name, whats in told.items():
        yield name.replace("_", " "), "; ".join(whats), partial(_of_sampling, name)


def _of_sampling(name: str, plan: Plan) -> Any:
    return getattr(plan.sampling, name, None)


def _shown(value: Any) -> str:
    if value is None:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return number_text(value) if isinstance(value, float) else str(value)


_FIRST: tuple[tuple[str, str, Callable[[Plan], Any]], ...] = (
    ("algorithm", "sampled are whole users (ULS) or examples (ELS)", lambda plan: plan.algorithm),
    ("steps T", "noisy updates planned", lambda plan: plan.steps),
)  # fmt: skip
_LAST: tuple[tuple[str, str, Callable[[Plan], Any]], ...] = (
    ("denominator", "expected users (ULS) or examples (ELS) per step, if the population is right",
     lambda plan: plan.denominator),
    ("noise multiplier σ", "noise divided by the clip norm", lambda plan: plan.noise.multiplier),
    ("clip norm C", "of each unit's gradient", lambda plan: plan.clip.l2_norm),
    ("clipping", "an adaptive clip norm starts at C, and its count is part of σ",
     lambda plan: plan.clipping),
    ("clip norm per example", "before the unit's", lambda plan: plan.clip.item_norm),
    ("target δ", "fixed with the plan", lambda plan: delta_text(plan.budget.target_delta)),
    ("target ε", "what the noise was chosen for", lambda plan: plan.budget.target_epsilon),
)  # fmt: skip

_SETTINGS = {
    "seq_len": "most tokens of an example",
    "learning_rate": "its peak",
    "lora_rank": "of the adapters trained in place of all weights",
    "selection": "which of a user's examples train, where there are more than G",
    "averaging": "of the weights released; free post-processing",
}
