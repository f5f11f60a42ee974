"""``userdp.tune``: train a grid of settings, choose one, and claim what choosing costs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from userdp.commands.arguments import refuse
from userdp.commands.progress import shown
from userdp.core.errors import UseError, warn
from userdp.core.stages import Progress
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.plans import Plan
from userdp.plans.proposal import Proposal, as_plan, declared_users
from userdp.plans.resolve_plan import PlanFields, resolve
from userdp.plans.small_delta import plan_with_small_delta
from userdp.sweeping.request import Choice, TuningMode, build_request, grid
from userdp.sweeping.runs import Tuned, run_sweep
from userdp.training.config import OptimizerName, TrainConfig

AnyPlan = Plan | Proposal | str | os.PathLike[str]


def tune(
    store: str | os.PathLike[str],
    plan: AnyPlan | Sequence[AnyPlan] = (),
    *,
    out: str | os.PathLike[str],
    tuning: TuningMode | None = None,
    learning_rate: Sequence[float] = (),
    l2_clip_norm: Sequence[float] = (),
    optimizer: Sequence[OptimizerName] = (),
    epsilon: float | None = None,
    population: int | None = None,
    delta: float | None = None,
    device: str = "auto",
    resume: bool = False,
    allow_large_delta: bool = False,
    learning: TrainConfig | None = None,
    progress: Progress | None = None,
    **choice: Annotated[Any, Choice],
) -> Tuned:
    """Train a grid of settings; claim what choosing one costs.

    Each candidate is a run of its own in DIR/trial-001 and on; the one of least held-out loss is
    copied to DIR/winner, whose ledger claims what the tuning costs. Killed, a tuning goes on with
    resume; the same line in further processes trains trials beside this one.

    Example::

        userdp tune store --out tuned --plan plan.json --tuning composition --l2-clip-norm 0.1 0.3

    Args:
        store: a user store, or its folder.
        plan: plans, or their files; several compare methods, such as ULS and ELS.
        out: the tuning's folder (DIR).
        tuning: non-private: by the exact loss; the winner claims only its own run and says how it
            was chosen. composition: by DP losses; the budget is divided over all runs and scores.
            private-selection: a random number of random candidates; only the winner may be handed
            on, at the price of choosing (Papernot and Steinke 2022).
        learning_rate: values to try.
        l2_clip_norm: values to try, in place of the plan's; epsilon does not depend on it.
        optimizer: values to try.
        epsilon: of the winner, choosing included; the plan's own by default. The plan's noise is
            calibrated anew to its share. With population, in place of a plan: the preset's.
        population: the declared number of users, for the preset.
        delta: of the preset.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        resume: go on with the tuning in out; its options need not be given again.
        allow_large_delta: begin even where delta is not below 1 over the population.
        learning: what all candidates share: the model and how it learns.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.
        choice: fields of `userdp.sweeping.request.Choice`, such as ``split``.

    Raises:
        UseError: an argument is out of range or fits no other; nothing was charged.
        Interrupted: by Ctrl-C or SIGTERM; the trial that trained finished its step.
    """
    people = UserStore.open(Path(store), fixed_graph=True)  # each plan is held against it
    several = isinstance(plan, Sequence) and not isinstance(plan, str)
    plans: list[Any] = list(cast("Sequence[AnyPlan]", plan)) if several else [plan]
    request = None
    if tuning is None:
        numbers = (epsilon, population, delta, *choice.values())
        tried = (plans, learning_rate, l2_clip_norm, optimizer, learning)
        refuse({
            "a tuning needs --tuning by name, since what the winner claims depends on how it is "
            "chosen: non-private, composition or private-selection": not resume,
            "--resume goes on with what the tuning began with, and these options would be "
            "ignored: give --resume alone, or all of the options once more": any(tried)
            or any(one is not None for one in numbers),
        })  # fmt: skip
    else:
        learned = learning or TrainConfig()
        if not plans and epsilon is not None and population is not None:
            budget = PlanFields(epsilon=epsilon, population=population, delta=delta)
            made, _ = resolve(None, budget, low_rank=learned.lora_rank is not None)
            plans, epsilon = [made], None  # the plan's own
        elif not plans or population is not None or delta is not None:
            raise UseError(
                "a tuning needs a plan, or the budget of one",
                hint="--plan plan.json, made by userdp plan; or --epsilon and --population",
            )
        opened = StoreLedger(people.path).history().budget
        total = opened.filter.delta if opened else 0.0
        for one in plans:
            users = declared_users(one)
            how: dict[str, Any] = {"allow_large_delta": allow_large_delta, "total_delta": total}
            warn(plan_with_small_delta(as_plan(one), users=users, **how))
        axes = {"learning_rate": learning_rate, "optimizer": list(map(OptimizerName, optimizer))}
        request = build_request(
            people,
            grid(plans, learned, l2_clip_norms=l2_clip_norm, axes=axes),
            Choice(tuning=TuningMode(tuning), epsilon=epsilon, **choice),
        )
    with shown(progress) as bar:
        return run_sweep(people, Path(out), request, resume=resume, device=device, progress=bar)
