"""``userdp.federate``: subject-level privacy across silos, on this machine or on Flower's."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from userdp.commands.arguments import Section, divided
from userdp.commands.progress import say, shown
from userdp.core.codec import encode
from userdp.core.environment import library
from userdp.core.errors import Interrupted, warn
from userdp.core.interrupts import on_interrupt
from userdp.core.stages import Progress
from userdp.data.records import Record, Tally
from userdp.data.sources import InputOptions, open_source
from userdp.data.sources.conversations import template_of
from userdp.data.sources.source import SourceOptions
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.federated.algorithms import Declared
from userdp.federated.federation_plan import PLAN_FILE, FederationPlan, LanguageModel, claim_of
from userdp.federated.simulation import make_federation, measure, run_in_process
from userdp.plans import Budget, Plan
from userdp.plans.small_delta import require_small_delta


def sections() -> dict[str, Section]:
    """All that ``--set`` reaches: of the model, and of how the data is read."""
    return {
        "model": Section(of=LanguageModel, without=("model", "tokenizer_sha256", "vocab_size")),
        "input": Section(of=InputOptions),
    }


def federate(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    algorithm: str = "local-group-dp",
    silos: int = 16,
    silos_per_round: int | None = None,
    silos_per_subject: int | None = None,
    rounds: int = 32,
    epsilon: float = 4.0,
    delta: float = 1e-5,
    learning_rate: float = 2.0,
    model: str = "bundled",
    deployment: bool = False,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    **fields: Annotated[Any, Declared, sections],
) -> dict[str, Any]:
    """Train across silos with privacy for subjects in several.

    A fifth of each subject's items is held out; the rest is spread over the silos, each of which
    has a folder with a store, ledgers and noise of its own.

    Example::

        userdp federate chat.jsonl --out silos --items-per-silo 500 --subjects-per-silo 100

    Args:
        data: records as for userdp prepare.
        out: the new folder of the federation.
        algorithm: what a silo does (Marathe et al. 2023): fedavg, local-item-dp, local-group-dp,
            higradavg-dp or user-ldp.
        silos: n.
        silos_per_round: m, by a public schedule; all by default.
        silos_per_subject: s, a bound on the silos that hold one subject, which is kept when the
            items are spread; all by default.
        rounds: R.
        epsilon: the budget, per subject (local-item-dp: per subject who holds one item).
        delta: of the claim.
        learning_rate: of the local steps.
        model: "bundled", "new", or a folder of a Hugging Face causal language model.
        deployment: only make the folders and the Flower app for silos on machines of their own; by
            default the silos take turns on this machine.
        device: where the silos compute here, and the model is measured: auto, cpu, cuda or cuda:N.
        resume: go on with the interrupted federation in out, by the plan that lies there; the
            rest of the line stays as it was.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.
        fields: of `userdp.federated.algorithms.Declared`, such as ``items_per_silo``; of the model,
            such as ``lora_rank``; and of `InputOptions`, such as ``user``.

    Returns:
        The ``plan`` that every silo and the server agreed on, and the claims that it foresees; the
        ``claim`` from the silos' ledgers, and how the model does on held-out items, exactly
        (``operator_only``); or the Flower ``app`` of a deployment.

    Raises:
        UseError: an argument is out of range or fits no other; nothing was charged.
        Interrupted: by Ctrl-C or SIGTERM; rounds that are done are kept.
    """
    constants, spec, reading = divided(fields, Declared, LanguageModel, InputOptions)
    folder, declared = Path(out), Declared(**constants)
    if deployment:
        library("flwr", extra="federated", what="a deployment")
    if resume and not deployment:
        return _run(folder, FederationPlan.load(folder / PLAN_FILE), device, progress)
    named = None if model in ("bundled", "new") else Path(model)
    tokenizer = StoreTokenizer.load(named)
    options = SourceOptions(**reading, **template_of(named))
    spec |= {"model": model, "vocab_size": tokenizer.vocab_size}
    records = _records(data, options)
    plan = FederationPlan.calibrated(
        declared,
        Budget(target_delta=delta, target_epsilon=epsilon),
        algorithm=algorithm,
        silos=silos,
        silos_per_round=silos if silos_per_round is None else silos_per_round,
        silos_per_subject=silos if silos_per_subject is None else silos_per_subject,
        rounds=rounds,
        learning_rate=learning_rate,
        model=LanguageModel(tokenizer_sha256=tokenizer.sha256, **spec),
    )
    if isinstance(plan.local, Plan):
        subjects, counted = silos * declared.subjects_per_silo, "subjects, all silos together"
        warn(require_small_delta(delta, subjects, counted=counted, allow_large_delta=False))
    make_federation(folder, plan, records, tokenizer=tokenizer, seed=plan.model.seed)
    if deployment:
        from userdp.federated.flower import write_app

        return _answer(folder, plan, app=write_app(folder))
    return _run(folder, plan, device, progress)


def _records(data: Any, options: SourceOptions) -> list[Record]:
    """The records that ``data`` names; the operator reads how many were dropped, and why."""
    source, tally = open_source([str(data)], options=options), Tally()
    records = list(source.records(tally, Progress()))
    for reason, count in tally.drops.items():
        say(f"operator-only: {count} records dropped: {reason}")
    return records


def _run(
    folder: Path, plan: FederationPlan, device: str, progress: Progress | None
) -> dict[str, Any]:
    """All rounds that are left, the claim, and how the model does."""
    left = "before its end: rounds that are done are kept, and steps of others stay charged"
    with on_interrupt(Interrupted(left, resume=True)), shown(progress) as bar:
        run_in_process(folder, plan, device=device, progress=bar)
    measured = measure(folder, plan, device=device)
    return _answer(folder, plan, claim=claim_of(folder), operator_only=measured)


def _answer(folder: Path, plan: FederationPlan, **outcome: Any) -> dict[str, Any]:
    """A federation, its plan, and what came of it."""
    claims = [asdict(guarantee) for guarantee in plan.guarantees()]
    values = {"federation": folder, "plan": encode(plan), "claims_of_the_plan": claims}
    return {**values, **outcome}
