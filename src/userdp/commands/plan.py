"""``userdp plan``: from a privacy and a compute budget to the best plan, and why."""

from __future__ import annotations

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from userdp.claims.claims import foreseen
from userdp.claims.lineage import Lineage
from userdp.claims.weights import Subject, ancestry
from userdp.commands.arguments import refuse, require_new
from userdp.commands.budget_overview import share_of, spent
from userdp.commands.progress import shown
from userdp.core.errors import Interrupted, warn
from userdp.core.interrupts import on_interrupt
from userdp.core.stages import Progress
from userdp.data.store_meta import StoreMeta, read_meta
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Query
from userdp.ledger.store_history import History
from userdp.plans.gradient_norms import GradientNorms, Measure
from userdp.plans.planner import Request, propose
from userdp.plans.proposal import Proposal
from userdp.plans.provenance import Provenance, Release
from userdp.queries.statistics import require_one_owner
from userdp.training.config import TrainConfig


def plan(
    store: str | os.PathLike[str],
    *,
    norms: str | os.PathLike[str] | GradientNorms | None = None,
    model: str | os.PathLike[str] | None = None,
    norms_out: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    hardware: str | None = None,
    micro_batch: int = 32,
    lora_rank: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
    measure: Measure | None = None,
    progress: Progress | None = None,
    **goals: Annotated[Any, Request],
) -> Proposal:
    """Choose a plan for a privacy budget and a compute budget.

    Public rules, the preset's, give every number that is not said. Gradient norms, where they are
    known, choose what the rules leave open: the group size, ELS or ULS, and the clip norm.

    Of the store only its ledger is read (and, with a model and no norms, the examples of held-out
    users, or of whom measure.source names). No count of it enters the plan: numbers are declared,
    or taken from the DP answers in its ledger. What all answers there cost is taken from epsilon,
    since the run's claim counts them.

    Example::

        userdp plan store --budget 64 --steps 50 --epsilon 4 --model bundled --population 1000

    Args:
        store: a user store, or its folder.
        norms: gradient norms that were measured before, or their file; or give the model.
        model: measure the norms of this model's gradients now: for G = 1, 2, 4, … the median over
            users of the norm of the mean gradient of at most G of a user's examples (Charles et al.
            2024, Equation 8), and the median norm over examples. Beside norms, the model whose cost
            is predicted.
        norms_out: the file that keeps the norms that are measured now, for the next plan.
        out: the plan file to write, for training.
        hardware: predict time and memory of the plan on it, such as h100x8: a100, h100, h200, l4,
            l40s or cpu, and how many. It is a prediction, from public figures and the shapes of the
            model.
        micro_batch: as for training, for that prediction: most examples in one pass.
        lora_rank: as for training: of the adapters that are measured and predicted for.
        device: where norms are measured: auto (cuda where there is one, else cpu), cpu, cuda or
            cuda:N.
        overwrite: replace the file at out.
        measure: of whom and how norms are measured.
        progress: receives the progress of measuring; by default a bar, or lines where stderr is no
            terminal.
        goals: fields of `userdp.plans.planner.Request`, such as ``epsilon``, ``steps``, ``budget``
            and ``population``.

    Returns:
        The plan, with the candidates and why this one was chosen. ``prediction["claim"]`` says what
        the claim of its run will be, and each part.

    Raises:
        UseError: no population is known, no plan is within the budget, or an argument is out of
            range.
    """
    for file, name in ((out, "plan.json"), (norms_out, "norms.json")):
        if file is not None:
            require_new(Path(file), overwrite=overwrite, name=name)
    meta, ledger = read_meta(path := Path(store)), StoreLedger(Path(store))
    require_one_owner(meta)
    who = measure or Measure()
    config = TrainConfig(
        model=str(model or "bundled"), lora_rank=lora_rank, micro_batch=micro_batch
    )
    measures = norms is None and model is not None
    refuse({
        "--hardware predicts what a step of a model costs: add --model MODEL; --norms may stay "
        "beside it": hardware is not None and model is None,
        "--norms says how long gradients are, and --model measures it: leave one out; with "
        "neither, public rules choose": None not in (norms, model) and hardware is None,
        "--norms-out and --set measure.… are of norms that are measured: add --model MODEL, "
        "whose norms they are": model is None and (norms_out is not None or measure is not None),
        "norms under DP are paid for once, and a plan that fails would lose them: add "
        "--norms-out norms.json": measures and norms_out is None
        and who.source is Provenance.DP_RELEASE,
        "measure.source=declared measures nobody": measures and who.source is Provenance.DECLARED,
    })  # fmt: skip
    if measures:
        declared = goals.get("population") if who.source is Provenance.DP_RELEASE else None
        norms = _measured(path, who, config, progress, population=declared, device=device)
    elif norms is not None and not isinstance(norms, GradientNorms):
        norms = GradientNorms.load(Path(norms))
    if norms_out is not None and norms is not None:
        norms.save(Path(norms_out))
    history = ledger.history()
    proposal = propose(Request(norms=norms, releases=released(history), **goals))
    prediction, notes = dict(proposal.prediction), list(proposal.notes)
    if hardware is not None:
        prediction["cost"] = _cost(proposal, meta, config, hardware)
    foreign = model not in (None, "bundled", "new")
    base = ancestry(Subject(name=str(model), loaded=True), ledger) if foreign else Lineage()
    if any("text_lineage" in facts for facts in meta.sources):
        from userdp.training.model_origin import lineage_of_text  # loads torch

        base += lineage_of_text(UserStore.open(path, fixed_graph=True))
    prediction["claim"] = foreseen(history, proposal.plan, base=base)
    if history.budget is not None:
        opened = history.budget.filter
        before, more = spent(history, opened), share_of(opened, proposal.plan)
        notes.append(
            f"of the store's budget {100 * before:.1f} % is spent; a run of this plan takes "
            f"{100 * more:.1f} %{'' if before + more <= 1 else ': it would be refused'}"
        )
    proposal = replace(proposal, prediction=prediction, notes=tuple(notes))
    if out is not None:
        proposal.save(Path(out))
    if proposal.operator_only:
        warn(
            f"this plan was chosen from {proposal.basis}. The claim does not cover that; plan file "
            "and report say so."
        )
    return proposal


def released(history: History) -> tuple[Release, ...]:
    """The DP answers in a ledger, each at what a later run's claim counts of it.

    Whether or not a number is taken from one: nobody can say that it had no part in the choice. A
    store's budget pays for the answers by itself, beside the run.
    """
    return tuple(
        Release(
            name=asked.name,
            query_id=asked.id,
            epsilon=asked.pure_epsilon if history.budget is None else 0.0,
            value=history.answers.get(asked.id),
        )
        for charge in history.charges.values()
        if isinstance(asked := charge.pays_for, Query)
    )


def _measured(
    store: Path, who: Measure, config: TrainConfig, progress: Progress | None, **how: Any
) -> GradientNorms:
    """The norms of the model, measured now."""
    from userdp.training.norm_probe import probe_store

    if who.source is Provenance.NON_PRIVATE:
        warn(
            "the norms of measure.source=non-private are exact numbers of the training users; no "
            "epsilon covers what is chosen by them."
        )
    left = "before its end: no norms were kept, and what was charged stays charged"
    with on_interrupt(Interrupted(left)), shown(progress) as bar:
        return probe_store(UserStore.open(store), config, who, progress=bar, **how)


def _cost(
    proposal: Proposal, meta: StoreMeta, config: TrainConfig, hardware: str
) -> dict[str, Any]:
    """What the plan is predicted to cost by each method; the first one is plain training."""
    from userdp.gradients.cost import METHODS, Forecaster, hardware_of
    from userdp.training.causal_models import models_by_depth

    machine, sampling = hardware_of(hardware), proposal.plan.sampling
    build, depth = models_by_depth(config, vocab_size=meta.vocab_size, seq_len=meta.seq_len)
    group_size = sampling.group_size if sampling.by_user else 1
    forecaster = Forecaster(
        build=build, depth=depth, length=meta.seq_len, group_size=group_size, hardware=machine,
        micro_batch=config.micro_batch,
    )  # fmt: skip
    work = {"gradients": proposal.prediction["gradients_per_step"], "steps": proposal.plan.steps}
    rows = [asdict(forecaster.forecast(method, **work)) for method in METHODS]
    return {"hardware": hardware, "figures": machine.source, "methods": rows}
