"""``userdp federate``: subject-level privacy across silos, on Flower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from userdp.cli.output import Answer, print_warning
from userdp.commands.progress import shown, stderr
from userdp.commands.source_options import source_options
from userdp.commands.words import claim_in_words as claim_parts
from userdp.data.sources import InputOptions
from userdp.errors import UseError
from userdp.interrupts import told

if TYPE_CHECKING:
    from userdp.data.records import Record
    from userdp.data.tokenize import StoreTokenizer
    from userdp.federated.plan import FederationPlan, ModelSpec


def federate(
    data: str,
    /,
    *,
    out: Path | None = None,
    algorithm: str = "local-group-dp",
    silos: int = 16,
    silos_per_round: int | None = None,
    silos_per_subject: int | None = None,
    rounds: int = 32,
    local_steps: int = 1,
    batch_size: float = 64,
    items_per_silo: int | None = None,
    subjects_per_silo: int | None = None,
    group_size: int = 4,
    epsilon: float = 4.0,
    delta: float = 1e-5,
    allow_large_delta: bool = False,
    l2_clip_norm: float = 1.0,
    learning_rate: float = 2.0,
    source: str | None = None,
    input_options: Annotated[InputOptions | None, Parameter(name="*", group="Input")] = None,
    model: str | None = None,
    layers: int = 4,
    width: int | None = None,
    heads: int = 6,
    lora_rank: int | None = None,
    seq_len: int = 80,
    alpha: float | None = None,
    seed: int = 0,
    runtime: Literal["simulation", "in-process", "deployment"] = "simulation",
    device: str = "auto",
    resume: bool = False,
    claim: bool = False,
    cpus: int | None = None,
) -> Answer:
    """Train across silos with privacy for subjects whose items lie in several of them.

    DATA is `digits` (scikit-learn's, of made-up hands), any input of userdp prepare (LEAF's images
    train LEAF's network, all text a language model), or the folder of a federation to --claim. A
    fifth of each subject's items is held out; the rest is spread over the silos, each of which has
    a folder with a store, ledgers and noise of its own.

    Args:
        data: what to train on, or a federation's folder.
        out: the new folder of the federation.
        algorithm: what a silo does (Marathe et al. 2023): fedavg, local-item-dp, local-group-dp,
            higradavg-dp or user-ldp.
        silos: n.
        silos_per_round: m, by a public schedule; all by default.
        silos_per_subject: s, a bound on the silos that hold one subject, which is kept when the
            items are spread; all by default.
        rounds: R.
        local_steps: T, noisy steps of a silo in a round.
        batch_size: items that a step of a silo draws, expected over the declared number.
        items_per_silo: declared number of items of a silo, a public constant.
        subjects_per_silo: declared number of subjects of a silo, a public constant.
        group_size: k, most items of a subject in a silo; the rest never trains, and is counted.
        epsilon: the budget, per subject (LocalItemDP: per subject who holds one item).
        delta: of the claim.
        allow_large_delta: begin even where delta is not below 1 over the declared number of
            subjects: --silos times --subjects-per-silo, as many as there can be.
        l2_clip_norm: C.
        learning_rate: of the local steps.
        source: the kind of DATA, as in userdp prepare; by default told from the path.
        input_options: see userdp prepare.
        model: for text: bundled (the default), new, or a folder of a Hugging Face causal language
            model with its tokenizer.
        layers: of a new model.
        width: of a new model (192 by default), or of the network for images (4).
        heads: of a new model.
        lora_rank: for text: train and send low-rank adapters of this rank in place of all weights.
        seq_len: most tokens of an item of text.
        alpha: spread each subject's items over silos by a power law, in an order of its own;
            uniformly if left out.
        seed: public; of the initial weights, and of the spread over silos.
        runtime: Flower's simulation engine; this process alone; or only make the folders and the
            Flower app of a deployment.
        device: where --runtime in-process computes, and the model is measured: auto (cuda where
            there is one, else cpu), cpu, cuda or cuda:N. Flower's silos compute on CPUs.
        resume: go on with the interrupted federation in --out after its last round, by the plan
            that lies there; neither DATA nor the options of a plan are read again.
        claim: recompute the claim of the federation in the folder DATA from its ledgers.
        cpus: processors of the simulation.
    """
    if claim:
        return _claim(Path(data))
    if out is None:
        raise UseError("--out is missing: the folder of the new federation")
    if runtime != "in-process" and device not in ("auto", "cpu"):
        raise UseError(
            f"Flower's silos compute on CPUs, and --device says {device}",
            hint="leave --device out, or choose --runtime in-process",
        )
    if resume:
        return _run(out, _kept_plan(out), runtime=runtime, cpus=cpus, device=device)
    from userdp.federated.algorithms import Declared
    from userdp.federated.data import image_length, number_tokenizer
    from userdp.federated.plan import FederationPlan, LanguageModel, LeafCNN
    from userdp.federated.simulation import make_federation
    from userdp.plans import Budget, Plan
    from userdp.plans.small_delta import require_small_delta

    with stderr.status("reading the data"):
        records = _records(data, source, input_options, model, seed=seed)
    spec: ModelSpec
    length = image_length(records)
    if length is None:
        tokenizer = _text_tokenizer(model)
        spec = LanguageModel(
            model=model or "bundled", layers=layers, width=width or 192, heads=heads,
            lora_rank=lora_rank, seed=seed, seq_len=seq_len, **_facts(tokenizer),
        )  # fmt: skip
    elif model is None and lora_rank is None:
        tokenizer = number_tokenizer()
        classes = 10 if data == "digits" else 62
        spec = LeafCNN(
            width=width or 4, classes=classes, seed=seed, seq_len=length, **_facts(tokenizer)
        )
    else:
        raise UseError(
            f"a language model cannot be trained on the images of {data}",
            hint="leave --model and --lora-rank out",
        )
    if data == "digits":  # nobody's: its numbers may be counted
        subjects_per_silo = subjects_per_silo or len({record.user for record in records})
        items_per_silo = items_per_silo or max(1, len(records) // silos)
    if items_per_silo is None or subjects_per_silo is None:
        raise UseError(
            "--items-per-silo and --subjects-per-silo are missing: denominators must be public "
            "constants, and counting the data would make them private",
            hint="declare round numbers that you would also tell a stranger",
        )
    with stderr.status("calibrating the noise"):
        plan = FederationPlan.calibrated(
            Declared(
                items_per_silo=items_per_silo,
                subjects_per_silo=subjects_per_silo,
                group_size=group_size,
                batch_size=batch_size,
                local_steps=local_steps,
                l2_clip_norm=l2_clip_norm,
                budget=Budget(target_delta=delta, target_epsilon=epsilon),
            ),
            algorithm=algorithm,
            silos=silos,
            silos_per_round=silos_per_round or silos,
            silos_per_subject=silos_per_subject or silos,
            rounds=rounds,
            learning_rate=learning_rate,
            model=spec,
        )
    if isinstance(plan.local, Plan):
        subjects, counted = silos * subjects_per_silo, "subjects, all silos together"
        print_warning(
            require_small_delta(
                delta, subjects, counted=counted, allow_large_delta=allow_large_delta
            )
        )
    with stderr.status("preparing the silos' stores"):
        make_federation(out, plan, records, tokenizer=tokenizer, seed=seed, alpha=alpha)
    return _run(out, plan, runtime=runtime, cpus=cpus, device=device)


def _kept_plan(out: Path) -> FederationPlan:
    """Of the federation in a folder."""
    from userdp.federated.plan import PLAN_FILE, FederationPlan

    if not (out / PLAN_FILE).exists():
        raise UseError(f"there is no federation at {out} to resume", hint="leave out --resume")
    return FederationPlan.load(out / PLAN_FILE)


def _records(
    data: str, kind: str | None, options: InputOptions | None, model: str | None, *, seed: int
) -> list[Record]:
    """The records that DATA names; what cannot be used is told to the operator."""
    from userdp.data.progress import NoProgress
    from userdp.data.records import Tally
    from userdp.data.sources import open_source

    if data == "digits":
        from userdp.federated.digits import digits

        return digits(subjects=400, items_per_subject=32, seed=seed)
    folder = Path(model) if model is not None and Path(model).is_dir() else None
    opened = open_source([data], kind=kind, options=source_options(options, folder))
    tally = Tally()
    records = list(opened.records(tally, NoProgress()))
    for reason, count in tally.drops.items():
        stderr.print(f"operator-only: {count} records dropped: {reason}", soft_wrap=True)
    return records


def _text_tokenizer(model: str | None) -> StoreTokenizer:
    from userdp.data.tokenize import StoreTokenizer

    bundled = model in (None, "bundled", "new")
    return StoreTokenizer.load(None if bundled else Path(str(model)))


def _facts(tokenizer: StoreTokenizer) -> dict[str, Any]:
    return {"tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}


def _run(out: Path, plan: FederationPlan, *, runtime: str, cpus: int | None, device: str) -> Answer:
    from userdp.codec import encode
    from userdp.federated.simulation import claim_of, measure, run_flower, run_in_process

    result: dict[str, Any] = {
        "federation": str(out),
        "runtime": runtime,
        "plan": encode(plan),
        "claims_of_the_plan": [asdict(guarantee) for guarantee in plan.guarantees()],
    }
    if runtime == "deployment":
        from userdp.federated.deployment import write_app

        result["app"] = str(write_app(out))
    else:
        left = "before its end: rounds that are done are kept, and steps of others stay charged"
        with told(left, resume=True), shown() as bar:
            if runtime == "simulation":
                run_flower(out, plan, cpus=cpus, progress=bar)
            else:
                run_in_process(out, plan, device=device, progress=bar)
        result["claim"] = claim_of(out).to_dict()
        result["operator_only"] = measure(out, plan, device=device)
    return Answer(values=result, parts=_parts(plan, result))


def _parts(plan: FederationPlan, result: dict[str, Any]) -> Iterator[str]:
    from userdp.plans import Plan

    noise = plan.local.noise.multiplier if isinstance(plan.local, Plan) else 0.0
    yield (
        f"{plan.algorithm}: {plan.silos} silos, {plan.rounds} rounds of {plan.local.steps} local "
        f"steps, noise multiplier {noise:.4g}."
    )
    if "app" in result:
        yield (
            f"Flower app: {result['app']}, for `flwr run`; give each silo its own folder "
            "(docs/federated.md)."
        )
        return
    yield f"Claim: {result['claim']['headline']}."
    exact = dict(result["operator_only"])
    for name, why in (
        ("items_unreadable", "hold a class that the model does not have, and add nothing"),
        ("items_left_out_by_the_cap", "were left out by the cap of a subject"),
    ):
        if number := exact.pop(name):
            yield f"Operator-only: {number} items {why}."
    measured = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in exact.items())
    yield f"Operator-only, exact, not differentially private: {measured}."


def _claim(folder: Path) -> Answer:
    from userdp.federated.simulation import claim_of

    told = claim_of(folder)
    return Answer(
        values={"federation": str(folder), "claim": told.to_dict()},
        parts=[
            *claim_parts(told.claim),
            f"{told.subject_steps} planned local steps of the silos that may hold a subject are in "
            f"it, {'all' if told.complete else 'not all'} of which ran.",
        ],
    )
