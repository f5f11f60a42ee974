"""``userdp federate``: subject-level privacy across silos, on Flower."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from userdp.cli.output import Answer, print_warning, stderr
from userdp.errors import UseError

AlgorithmName = Literal["fedavg", "local-item-dp", "local-group-dp", "higradavg-dp", "user-ldp"]


def federate(
    data: str,
    /,
    *,
    out: Path | None = None,
    algorithm: AlgorithmName = "local-group-dp",
    accounting: Literal["tight", "paper"] = "tight",
    reduction: Literal["linear", "sqrt", "none"] = "linear",
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
    model: Literal["cnn", "lstm", "causal-lm"] | None = None,
    base: str = "bundled",
    width: int | None = None,
    seq_len: int = 80,
    alpha: float | None = None,
    seed: int = 0,
    runtime: Literal["simulation", "in-process", "deployment"] = "simulation",
    submit: str | None = None,
    claim: bool = False,
    cpus: int | None = None,
) -> Answer:
    """Train across silos with privacy for subjects whose items lie in several of them.

    DATA is `digits` (scikit-learn's, of made-up hands), a JSON Lines file with the fields user and
    text, LEAF's JSON, or the folder of a federation to --submit or --claim. The items are split
    80/20 and spread over the silos; each silo has a folder, a ledger and noise of its own.

    Args:
        data: what to train on, or a federation's folder.
        out: the new folder of the federation.
        algorithm: what a silo does (Marathe et al. 2023).
        accounting: tight is claimed; paper is as published and claims nothing.
        reduction: of the rounds, with --accounting paper.
        silos: n.
        silos_per_round: m, by a public schedule; all by default.
        silos_per_subject: s, a bound on the silos that hold one subject; all by default.
        rounds: R.
        local_steps: T, noisy steps of a silo in a round.
        batch_size: items that a step of a silo draws, expected over the declared number.
        items_per_silo: declared number of items of a silo, a public constant.
        subjects_per_silo: declared number of subjects of a silo, a public constant.
        group_size: k, most items of a subject in a silo; the rest is left out and counted.
        epsilon: the budget, per subject (LocalItemDP: per item).
        delta: of the claim.
        allow_large_delta: begin even where delta is not below 1 over the declared number of
            subjects: --silos times --subjects-per-silo, as many as there can be.
        l2_clip_norm: C.
        learning_rate: of the local steps.
        model: by the data if left out.
        base: with causal-lm, the model whose LoRA adapters train.
        width: the model's size, or the rank of its adapters.
        seq_len: characters, or tokens, of an item of text.
        alpha: spread each subject's items over silos by a power law, in an order of its own;
            uniformly if left out.
        seed: of the public initial weights, and of the split over silos.
        runtime: Flower's simulation engine; this process alone; or only make the folders and the
            Flower app of a deployment.
        submit: send the federation in the folder DATA to this SuperLink connection.
        claim: recompute what the ledgers of the federation in the folder DATA add up to.
        cpus: processors of the simulation.
    """
    if submit is not None:
        return _submit(Path(data), submit)
    if claim:
        return _claim(Path(data))
    if out is None:
        raise UseError("--out is missing: the folder of the new federation")
    if out.exists():
        raise UseError(f"{out} exists already", hint="choose another folder with --out")
    import numpy as np

    from userdp.federated.accounting import AccountingName, Algorithm, Reduction
    from userdp.federated.data import spread
    from userdp.federated.plan import FederationPlan
    from userdp.plan.small_delta import require_small_delta
    from userdp.sampling.coins import secret_generator

    draw = np.random.default_rng(seed)
    with stderr.status("reading the data"):
        train, held, spec = _read(data, model=model, base=base, width=width, seq_len=seq_len,
                                  seed=seed, draw=draw)  # fmt: skip
        (train, held), unreadable = _readable(spec, train, held)
        parts = spread(train, silos, draw, alpha=alpha)
    paper = accounting == "paper"
    chosen = Algorithm(algorithm)
    dropped = 0
    if chosen.private and not paper:  # the cap is a public constant, whatever the data hold
        coins = secret_generator()  # known ones would tie a subject's items to who else is there
        capped = [part.capped(group_size, coins) for part in parts]
        parts, dropped = [part for part, _ in capped], sum(left_out for _, left_out in capped)
    else:  # as published: nothing is capped, and the largest subject's number is used
        group_size = max((int(part.counts.max()) for part in parts if part.items), default=1)
    if items_per_silo is None or subjects_per_silo is None:
        if data != "digits" and chosen.private and not paper:
            raise UseError(
                "--items-per-silo and --subjects-per-silo are missing: denominators must be public "
                "constants, and counting the data would make them private",
                hint="declare round numbers that you would also tell a stranger",
            )
        items_per_silo = items_per_silo or max(1, round(np.mean([p.items for p in parts])))
        subjects_per_silo = subjects_per_silo or max(
            1, round(np.mean([len(p.counts) for p in parts]))
        )
    if not 0 < batch_size <= items_per_silo:
        raise UseError(
            f"--batch-size must be greater than 0 and at most --items-per-silo ({items_per_silo})"
        )
    if chosen.private and not paper:
        warning = require_small_delta(
            delta,
            silos * subjects_per_silo,
            counted="subjects, all silos together",
            allow_large_delta=allow_large_delta,
        )
        if warning is not None:
            print_warning(warning)
    with stderr.status("calibrating the noise"):
        plan = FederationPlan.calibrated(
            target_epsilon=epsilon,
            reduction=Reduction(reduction),
            algorithm=chosen,
            accounting=AccountingName(accounting) if chosen.private else AccountingName.TIGHT,
            silos=silos,
            silos_per_round=silos_per_round or silos,
            silos_per_subject=silos_per_subject or silos,
            rounds=rounds,
            local_steps=local_steps,
            sampling_probability=batch_size / items_per_silo,
            items_per_silo=items_per_silo,
            subjects_per_silo=subjects_per_silo,
            group_size=group_size,
            l2_clip_norm=l2_clip_norm,
            learning_rate=learning_rate,
            target_delta=delta,
            model=spec,
        )
    left_out = {"items_unreadable": unreadable, "items_left_out_by_the_cap": dropped}
    return _run(out, plan, parts, held, runtime=runtime, cpus=cpus, left_out=left_out)


def _readable(spec: Any, *parts: Any) -> tuple[list[Any], int]:
    """The items that the model can read, part by part, and how many it cannot: operator-only."""
    from userdp.federated.admission import readable_items

    kept = [part.take(readable_items(spec, part).nonzero()[0]) for part in parts]
    return kept, sum(part.items for part in parts) - sum(part.items for part in kept)


def _run(
    out: Path,
    plan: Any,
    parts: list[Any],
    held: Any,
    *,
    runtime: str,
    cpus: int | None,
    left_out: dict[str, int],
) -> Answer:
    from userdp.federated.simulation import claim_of, make_federation, run_flower, run_in_process

    make_federation(out, plan, parts)
    result: dict[str, Any] = {
        "federation": str(out),
        "runtime": runtime,
        "plan": plan.to_dict(),
        "other_accounting": _other(plan),
        "operator_only": dict(left_out),
    }
    if runtime == "deployment":
        from userdp.federated.deployment import write_app

        result["app"] = str(write_app(out))
    else:
        import torch

        from userdp.federated.models import accuracy, build_model, put_weights
        from userdp.federated.rounds import MODEL_FILE, load_weights

        if runtime == "simulation":
            run_flower(out, plan, cpus=cpus)
        else:
            with stderr.status("running the rounds"):
                run_in_process(out, plan)
        weights, _ = load_weights(out / MODEL_FILE)
        network, _ = build_model(plan.model)
        put_weights(network, weights)
        right, loss = accuracy(
            network, plan.model, torch.from_numpy(held.rows), torch.from_numpy(held.lengths)
        )
        result["claim"] = claim_of(out, plan).to_dict()
        result["claims_of_the_plan"] = [asdict(g) for g in plan.guarantees()]
        result["operator_only"] |= {"accuracy": right, "loss": loss, "held_out_items": held.items}
    return Answer(values=result, parts=_parts(plan, result))


def _other(plan: Any) -> dict[str, Any] | None:
    """What the other accounting would say of the same constants, side by side."""
    from userdp.federated.accounting import AccountingName, Reduction, flaws_of

    if not plan.algorithm.private or plan.target_epsilon is None:
        return None
    from dataclasses import fields

    constants = {f.name: getattr(plan, f.name) for f in fields(plan)}
    for name in ("noise_multiplier", "planned_rounds", "reduction", "target_epsilon"):
        constants.pop(name)
    constants["rounds"] = plan.planned_rounds or plan.rounds
    constants["accounting"] = AccountingName.TIGHT if plan.paper else AccountingName.PAPER
    made = type(plan).calibrated(target_epsilon=plan.target_epsilon, **constants)
    noise = {"1": made.noise_multiplier}
    if made.paper and str(made.algorithm) == "local-group-dp":
        noise |= {str(z): made.paper_noise_of_group(z) for z in (2, 3)}
    return {
        "accounting": str(made.accounting),
        "rounds": made.rounds,
        "noise_multiplier": made.noise_multiplier,
        "noise_multiplier_by_largest_group": noise if len(noise) > 1 else None,
        "flaws": list(flaws_of(made.algorithm, Reduction.LINEAR)) if made.paper else [],
    }


def _parts(plan: Any, result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{plan.algorithm}, accounting {plan.accounting}: {plan.silos} silos, {plan.rounds} rounds "
        f"of {plan.local_steps} local steps, noise multiplier {plan.noise_multiplier:.4g}."
    )
    other = result["other_accounting"]
    if other:
        flaws = f", unsound by ({', '.join(other['flaws'])})" if other["flaws"] else ""
        yield (
            f"By the accounting {other['accounting']}{flaws}: noise multiplier "
            f"{other['noise_multiplier']:.4g}, {other['rounds']} rounds."
        )
    for letter, why in plan.flaws.items():
        yield (f"No epsilon is claimed ({letter}): {why}.")
    kept = result["operator_only"]
    if kept["items_unreadable"]:
        yield (
            f"Operator-only: {kept['items_unreadable']} items hold a class or a token that the "
            "model does not have, and count as absent."
        )
    if kept["items_left_out_by_the_cap"]:
        yield (
            f"Operator-only: {kept['items_left_out_by_the_cap']} items were left out by the cap "
            "of a subject."
        )
    if "app" in result:
        yield (f"Flower app: {result['app']}; give each silo its own folder (docs/federated.md).")
        return
    claim = result["claim"]
    if math.isfinite(claim["epsilon"]):
        yield (f"Claim: {plan.guarantee(subject_steps=claim['subject_steps'])}.")
    yield (
        f"Operator-only: accuracy {kept['accuracy']:.3f}, loss {kept['loss']:.3f} on "
        f"{kept['held_out_items']} held-out items; exact, not differentially private."
    )


def _claim(folder: Path) -> Answer:
    from userdp.federated.ledger import LEDGER_FILE, federation_claim

    claim = federation_claim(sorted(folder.glob(f"silo-*/{LEDGER_FILE}")))
    return Answer(
        values={"federation": str(folder), "claim": claim.to_dict()},
        parts=[
            f"{claim.guarantee}: {claim.subject_steps} local steps of the silos that may hold a "
            "subject" + (f"; unsound by ({', '.join(claim.flaws)})" if claim.flaws else "")
        ],
    )


def _submit(folder: Path, connection: str) -> Answer:
    from userdp.federated.deployment import submit

    said = submit(folder, connection)
    return Answer(
        values={"federation": str(folder), "connection": connection, "flower": said}, parts=[said]
    )


def _read(
    data: str,
    *,
    model: str | None,
    base: str,
    width: int | None,
    seq_len: int,
    seed: int,
    draw: Any,
) -> tuple[Any, Any, Any]:
    """(training items, held-out items, the model) of what DATA names."""
    from userdp.federated.data import digits, split_items
    from userdp.federated.plan import ModelKind, ModelSpec
    from userdp.federated.text import VOCABULARY, character_items, read_leaf, read_texts

    path = Path(data)
    if data == "digits":
        items = digits(subjects=400, items_per_subject=32, seed=seed)
        kind = "cnn"
    elif not path.exists():
        raise UseError(
            f"there is no {data}", hint="give digits, a JSON Lines file, or LEAF's JSON files"
        )
    elif path.is_dir() or path.suffix == ".json":
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        items = read_leaf(files)
        # LEAF's texts are 80 characters and the next; its images are squares and a class.
        kind = "lstm" if items.rows.shape[1] == 81 else "cnn"
    elif model == "causal-lm":
        from userdp.federated.tokens import token_items

        items = token_items(read_texts(path), base=base, seq_len=seq_len)
        kind = "causal-lm"
    else:
        items = character_items(read_texts(path), seq_len=seq_len)
        kind = "lstm"
    if model is not None and model != kind:
        raise UseError(f"a {model} cannot be trained on {data}", hint=f"use --model {kind}")
    train, held = split_items(items, draw)
    if not train.items or not held.items:
        raise UseError(f"{data} holds too few items to split")
    if kind == "cnn":
        side = math.isqrt(items.rows.shape[1] - 1)
        if side * side != items.rows.shape[1] - 1:
            raise UseError(f"the images of {data} are not square")
        classes = 10 if data == "digits" else 62
        spec = ModelSpec(
            kind=ModelKind.CNN, width=width or 4, inputs=side, outputs=classes, seed=seed
        )
    elif kind == "lstm":
        spec = ModelSpec(
            kind=ModelKind.LSTM,
            width=width or 32,
            inputs=VOCABULARY,
            outputs=VOCABULARY,
            seed=seed,
        )
    else:
        from userdp.federated.tokens import vocabulary_size

        spec = ModelSpec(
            kind=ModelKind.CAUSAL_LM,
            width=width or 4,
            inputs=seq_len,
            outputs=vocabulary_size(base),
            seed=seed,
            base=base,
        )
    return train, held, spec
