"""``userdp.train``: fine-tune a model with user-level differential privacy."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from userdp.commands.arguments import SamplingFields, Section, divided
from userdp.core.errors import UseError, in_short, warn
from userdp.core.stages import Progress
from userdp.noise.clip_forms import AdaptiveClipping, Clip
from userdp.training.config import PlainPlan, RunOptions, TrainConfig, changed, train_config

if TYPE_CHECKING:  # what the help does not need is imported where it is used
    from userdp.claims import Claim
    from userdp.data.user_store import UserStore
    from userdp.plans import Plan
    from userdp.plans.proposal import Proposal

    AnyPlan = Plan | Proposal | PlainPlan | str | os.PathLike[str]
else:
    AnyPlan = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run's folder and what it claims.

    Args:
        path: the folder.
        claim: of all that the run released, from its ledger.
        algorithm: as its plan says; None of a run without privacy.
        steps: taken.
        seconds: that the steps took in this call.
    """

    path: Path
    claim: Claim
    algorithm: str | None
    steps: int
    seconds: float

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def model(self) -> Path:
        """The released weights, in the format of `transformers`, or of `peft` if they are alone."""
        from userdp.ledger import RunFolder

        return RunFolder(self.path).released

    @property
    def ledger(self) -> Path:
        """One line per attempted step; may be handed on."""
        from userdp.ledger import RunFolder

        return RunFolder(self.path).ledger

    def to_dict(self) -> dict[str, Any]:
        """The object of ``userdp train --json``."""
        return {
            **self.claim.to_dict(),
            "algorithm": self.algorithm,
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "run": str(self.path),
            "model": str(self.model),
            "ledger": str(self.ledger),
        }


def train(
    store: str | os.PathLike[str],
    plan: str | os.PathLike[str] | AnyPlan | None = None,
    *,
    out: str | os.PathLike[str],
    epsilon: float | None = None,
    population: int | None = None,
    delta: float | None = None,
    steps: int | None = None,
    cohort_size: float | None = None,
    group_size: int | None = None,
    l2_clip_norm: float | None = None,
    model: str | None = None,
    lora_rank: int | None = None,
    learning_rate: float | None = None,
    micro_batch: int | None = None,
    device: str | None = None,
    resume: bool = False,
    dry_run: bool = False,
    config: TrainConfig | None = None,
    progress: Progress | None = None,
    **fields: Annotated[Any, sections],
) -> Run | dict[str, Any] | None:
    """Fine-tune a model with user-level differential privacy.

    A budget suffices: from epsilon and population a preset chooses all else, without a look at the
    store, and says it. Each step is charged in the run's ledger before its data is read; the whole
    plan is reserved in the store's before the first. The weights are in RUN/model.

    Example::

        userdp train store --out run --epsilon 4 --population 20000

    Args:
        store: a user store, or its folder.
        plan: a plan, or its file, in place of a budget.
        out: the run's folder (RUN).
        epsilon: the budget.
        population: the declared number of users: a public constant.
        delta: in (0, 1); by default population^-1.1.
        steps: T, noisy updates.
        cohort_size: M, users expected per step.
        group_size: G, most examples of a user in a step.
        l2_clip_norm: C, of each user's gradient.
        model: "bundled", "new", a folder of a Hugging Face causal language model, or its name.
        lora_rank: train adapters of this rank.
        learning_rate: a fixed one; by default it follows the noisy gradients from 0.002 (few people
            0.003, adapters 0.008) on, free in epsilon.
        micro_batch: most examples in one pass.
        device: auto, cpu, cuda or cuda:N.
        resume: go on with the interrupted run.
        dry_run: charge nothing: print noise, time and claim.
        config: the model and how it learns, whole; fields that are given beside it count.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.
        fields: of `TrainConfig`, `RunOptions` and `userdp.plans.resolve_plan.PlanFields`, by their
            names, such as ``weight_decay``.

    Returns:
        The run; or the cost and the claim that a dry run foresees. None on all processes but the
        first.

    Raises:
        UseError: an argument is out of range or fits no other; nothing was charged.
        FailureError: the machine could not do it; what was charged stays charged.
        Interrupted: by Ctrl-C or SIGTERM; the step that was charged was finished and is in a
            checkpoint, from which ``resume`` goes on.
    """
    from userdp.claims import claim
    from userdp.commands.progress import shown
    from userdp.data.user_store import UserStore, require_intact
    from userdp.plans.proposal import declared_users
    from userdp.training.distributed import joined
    from userdp.training.loop import train as run_training

    folder = Path(out)
    require_trackers(fields.get("report_to") or ())
    fields |= {
        "epsilon": epsilon, "population": population, "delta": delta, "steps": steps,
        "cohort_size": cohort_size, "group_size": group_size, "l2_clip_norm": l2_clip_norm,
        "model": model, "lora_rank": lora_rank, "learning_rate": learning_rate,
        "micro_batch": micro_batch, "device": device, "resume": resume, "dry_run": dry_run,
    }  # fmt: skip
    chosen, learned, run = _resolved(plan, folder, config, fields)
    # The plan is held against the store's adjacency in training.
    people = UserStore.open(Path(store), fixed_graph=True)
    if isinstance(chosen, PlainPlan):
        warn(
            "training without privacy: the people in this store get no protection from this run, "
            "and no epsilon can be claimed for the store any more."
        )
    elif not run.resume:
        _announce_claim(people, chosen, learned, run)
    how: dict[str, Any] = {"out": folder, "options": run, "users": declared_users(plan)}
    with joined() as world, shown(progress if world.rank == 0 else Progress()) as bar:
        if run.verify:
            world.on_rank_zero(lambda: require_intact(people, quick=False, progress=bar))
        begin = time.monotonic()
        dry = run_training(people, chosen, learned, progress=bar, **how)
    if world.rank != 0:
        return None
    if dry is not None:
        return dry
    return Run(
        path=folder,
        claim=claim(folder),
        algorithm=None if isinstance(chosen, PlainPlan) else chosen.algorithm,
        steps=chosen.steps,
        seconds=time.monotonic() - begin,
    )


def require_trackers(names: Sequence[str]) -> None:
    """`UseError` of a tracker that `transformers` does not know or that is not installed.

    Asked before a plan is charged, and made again where the curves are drawn.
    """
    if names:
        from transformers.integrations import get_reporting_integration_callbacks

        try:
            [kind() for kind in get_reporting_integration_callbacks(list(names))]
        except (ValueError, RuntimeError) as error:
            raise UseError(f"run.report_to cannot be used: {in_short(error)}") from error


def sections() -> dict[str, Section]:
    """All that ``--set`` reaches: fields of the plan, of the learning and of the run."""
    from userdp.plans.resolve_plan import PlanFields

    return {
        "plan": Section(of=PlanFields, without=("sampling", "clip", "adaptation")),
        "sampling": Section(of=SamplingFields, without=("group_size",), whole=dict),
        "clip": Section(of=Clip, without=("l2_norm",), whole=dict),
        "adaptation": Section(of=AdaptiveClipping, whole=dict),
        "learning": Section(of=TrainConfig),
        "run": Section(of=RunOptions, without=("resume", "dry_run")),
        "plain": Section(of=PlainPlan, whole=dict),
    }


def _resolved(
    plan: AnyPlan | None,
    folder: Path,
    config: TrainConfig | None,
    fields: dict[str, Any],
) -> tuple[Plan | PlainPlan, TrainConfig, RunOptions]:
    """The plan, the configuration and the options: as given, or those of the resumed run."""
    from userdp.commands.progress import say
    from userdp.plans.resolve_plan import PlanFields, resolve

    plain = fields.pop("plain", {})
    planned, learning, options = divided(fields, PlanFields, TrainConfig, RunOptions)
    if "scores" in options:
        options["scores"] = Path(options["scores"])  # in Python it may be a text
    chosen, run = PlanFields(**planned), RunOptions(**options)
    if run.resume and plan is None and not (chosen.given or plain):
        plan, kept = _begun(folder)
        config = config or kept
    learned = TrainConfig(**learning) if config is None else changed(config, **learning)
    if isinstance(plan, PlainPlan) or plain:
        if chosen.given or (plan is not None and plain):
            names = ", ".join(chosen.given or ["plan"])
            raise UseError(f"{names} says nothing in a run without privacy (plain)")
        if plain and plain.keys() != {"steps", "batch_size"}:
            raise UseError("a run without privacy needs plain.steps and plain.batch_size")
        return plan if isinstance(plan, PlainPlan) else PlainPlan(**plain), learned, run
    resolved, by_preset = resolve(plan, chosen, low_rank=learned.lora_rank is not None)
    own = {*chosen.given, *learning} | (set() if config is None else {"learning_rate"})
    if by_preset and "learning_rate" not in own:
        learned = replace(learned, learning_rate=by_preset.learning_rate)
    if by_preset and (sentence := by_preset.sentence(own)):
        say(sentence)
    return resolved, learned, run


def _begun(out: Path) -> tuple[Plan | PlainPlan, TrainConfig]:
    """The plan and the configuration of the run that is resumed."""
    from userdp.ledger import RunFolder
    from userdp.plans import Plan

    folder = RunFolder(out)
    options = folder.read_train()
    learned = train_config(options.get("learning", {}))
    if folder.plan.exists():
        return Plan.load(folder.plan), learned
    if "plain" not in options:
        raise UseError(f"there is no run at {out} to resume", hint="leave out --resume")
    return PlainPlan(**options["plain"]), learned


def _announce_claim(people: UserStore, plan: Plan, learned: TrainConfig, run: RunOptions) -> None:
    """Say before the charge what the run will claim, or warn that it will claim nothing."""
    from userdp.claims.claim_sentences import foreseen_in_words
    from userdp.claims.claims import foreseen
    from userdp.commands.progress import say
    from userdp.ledger import StoreLedger
    from userdp.training.model_origin import lineage_of_model, lineage_of_text

    if not plan.sampling.covered:
        warn(
            f"no accountant covers {plan.sampling.words.title}, so no epsilon is claimed for "
            "this run or, from here on, for the store."
        )
        return
    history, base = StoreLedger(people.path).history(), lineage_of_model(people, name=learned.model)
    to_come = foreseen(history, plan, base=base + lineage_of_text(people))
    if run.slot is None and (len(to_come["parts"]) > 1 or history.budget is not None):
        free = "" if run.dry_run else " A trial costs nothing by --dry-run, or on public text."
        say(f"The model will claim {foreseen_in_words(to_come)}.{free}")
