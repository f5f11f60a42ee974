"""Federations of 16 silos at ε = 4, δ = 1e-5: the algorithms under both accountings, in small.

    python -m benchmarks.federated                    # noise multipliers at the paper's sizes
    python -m benchmarks.federated run --data digits --work runs/federated
    python -m benchmarks.federated table

Every run's row is written as it ends, and none is run twice; a killed campaign goes on. A learning
rate is chosen on a seed of its own (`TUNING_SEED`) where several are listed, then used for the
reported ones.

The ``paper`` variants were fixed before any run: its noise, mini-batches and T steps a round, and
rounds reduced by s (Theorem 3.13 corrected). The ``tight`` ones may choose rounds, steps, batches
and the cap k by public reasoning: one step a round with a larger batch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from benchmarks.private_runs import append_row, name_of, read_rows
from userdp.federated.accounting import AccountingName, Algorithm, Reduction
from userdp.federated.data import SubjectItems, digits, split_items, spread
from userdp.federated.models import accuracy, build_model, put_weights
from userdp.federated.plan import FederationPlan, ModelKind, ModelSpec
from userdp.federated.simulation import claim_of, make_federation, run_in_process
from userdp.federated.text import VOCABULARY, character_items, read_texts

RESULTS = Path("docs/results/federated.jsonl")
SILOS, EPSILON, DELTA = 16, 4.0, 1e-5
SEEDS, TUNING_SEED = (0, 1, 2), 100
TEST_ITEMS = 1500

# Learning rates tried on the tuning seed: of the mean gradient, of steps with many rounds, of the
# few that the paper's reduction leaves, and of UserLDP, whose noise is that of a whole silo.
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {
        "rounds": 32,
        "paper": {"local_steps": 4, "batch": 16},
        "tight": {"local_steps": 1, "batch": 64, "cap": 2},
        "clip": 1.0,
        "rates": {"fedavg": (0.3,), "item": (0.5,), "tight": (1.0, 2.0)}
        | {"paper": (3.0, 10.0), "user": (0.03,)},
    },
    "shakespeare": {
        "rounds": 16,
        "paper": {"local_steps": 4, "batch": 16},
        "tight": {"local_steps": 1, "batch": 64, "cap": 4},
        "clip": 1.0,
        "rates": {"fedavg": (3.0,), "item": (2.0,), "tight": (4.0,)}
        | {"paper": (0.5, 2.0), "user": (0.03,)},
    },
}

MODELS = {
    "digits": ModelSpec(kind=ModelKind.CNN, width=2, inputs=8, outputs=10),
    "shakespeare": ModelSpec(kind=ModelKind.LSTM, width=24, inputs=VOCABULARY, outputs=VOCABULARY),
}

T, P = AccountingName.TIGHT, AccountingName.PAPER
CELLS: tuple[tuple[Algorithm, AccountingName], ...] = (
    (Algorithm.LOCAL_ITEM, T),
    (Algorithm.HIGRADAVG, P),
    (Algorithm.HIGRADAVG, T),
    (Algorithm.LOCAL_GROUP, P),
    (Algorithm.LOCAL_GROUP, T),
    (Algorithm.FEDAVG, T),
    (Algorithm.USER_LDP, P),
    (Algorithm.USER_LDP, T),
    (Algorithm.LOCAL_ITEM, P),
)
"""In the order in which they run: what the question needs most comes first."""


def load(name: str, work: Path, texts: Path) -> SubjectItems:
    """The data set, kept in ``work`` once it is made."""
    kept = work / f"{name}.npz"
    if not kept.exists():
        work.mkdir(parents=True, exist_ok=True)
        if name == "digits":
            data = digits(subjects=3500, items_per_subject=24)
        else:
            data = character_items(read_texts(texts), seq_len=20)
        data.save(kept)
    return SubjectItems.load(kept)


def prepare(
    data: SubjectItems, seed: int, *, cap: int | None, alpha: float | None
) -> tuple[list[SubjectItems], SubjectItems]:
    """16 silos of training items, capped if asked, and held-out items."""
    draw = np.random.default_rng(seed)
    train, held = split_items(data, draw)
    silos = spread(train, SILOS, draw, alpha=alpha)
    if cap is not None:
        silos = [silo.capped(cap, draw)[0] for silo in silos]
    chosen = np.sort(draw.permutation(held.items)[:TEST_ITEMS])
    return silos, held.take(chosen)


def plan_for(
    name: str,
    algorithm: Algorithm,
    accounting: AccountingName,
    silos: list[SubjectItems],
    *,
    rate: float,
) -> FederationPlan:
    """The plan of one cell; nominal sizes are the mean ones, rounded, declared public here."""
    settings = SETTINGS[name]
    paper = accounting is AccountingName.PAPER or algorithm is Algorithm.FEDAVG
    # LocalItemDP keeps the paper's batches in both: its protection and its price are the same.
    item = algorithm is Algorithm.LOCAL_ITEM
    shape = settings["paper"] if paper or item else settings["tight"]
    items = round(float(np.mean([silo.items for silo in silos])), -1)
    largest = max(int(silo.counts.max()) for silo in silos)
    capped = not paper and not item
    constants: dict[str, Any] = {
        "algorithm": algorithm,
        "accounting": AccountingName.TIGHT if algorithm is Algorithm.FEDAVG else accounting,
        "silos": SILOS,
        "silos_per_round": SILOS,
        "silos_per_subject": SILOS,
        "rounds": settings["rounds"],
        "local_steps": shape["local_steps"],
        "sampling_probability": min(1.0, shape["batch"] / items),
        "items_per_silo": int(items),
        "subjects_per_silo": round(float(np.mean([len(silo.counts) for silo in silos]))),
        "group_size": settings["tight"]["cap"] if capped else largest,
        "l2_clip_norm": settings["clip"],
        "learning_rate": rate,
        "target_delta": DELTA,
        "model": MODELS[name],
    }
    return FederationPlan.calibrated(
        target_epsilon=EPSILON, reduction=Reduction.LINEAR, **constants
    )


def run(name: str, data: SubjectItems, key: Mapping[str, Any]) -> dict[str, Any]:
    """One federation, from its key."""
    algorithm, accounting = Algorithm(key["algorithm"]), AccountingName(key["accounting"])
    sound = accounting is AccountingName.TIGHT and algorithm.for_subjects
    silos, held = prepare(
        data,
        key["seed"],
        cap=SETTINGS[name]["tight"]["cap"] if sound else None,
        alpha=key.get("alpha"),
    )
    silos = [silo for silo in silos if silo.items]
    plan = plan_for(name, algorithm, accounting, silos, rate=key["rate"])
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "federation"
        make_federation(folder, plan, silos)
        model, _ = build_model(plan.model)
        weights = run_in_process(folder, plan)
        put_weights(model, weights)
        claim = claim_of(folder, plan)
    right, loss = accuracy(
        model, plan.model, torch.from_numpy(held.rows), torch.from_numpy(held.lengths)
    )
    noise = plan.noise_multiplier
    if plan.paper and algorithm is Algorithm.LOCAL_GROUP:
        noise = plan.paper_noise_of_group(2)
    return {
        "key": dict(key),
        "accuracy": right,
        "loss": loss,
        "noise_multiplier": noise,
        "noise_per_unit": noise / plan.denominator if algorithm.private else 0.0,
        "rounds": plan.rounds,
        "local_steps": plan.local_steps,
        "batch": plan.batch_size,
        "group_size": plan.group_size,
        "charged_steps": plan.charged_steps,
        "epsilon": claim.guarantee.epsilon if plan.flaws == {} and algorithm.private else None,
        "claims": [asdict(g) for g in plan.guarantees()] if not plan.paper else [],
        "flaws": "".join(plan.flaws),
        "seconds": time.process_time() - began,
    }


def jobs(name: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Keys of what is to run: all rates on the tuning seed, then the best rate on the others."""
    for algorithm, accounting in CELLS:
        rates = SETTINGS[name]["rates"][_kind(algorithm, accounting)]
        base = {"data": name, "algorithm": str(algorithm), "accounting": str(accounting)}
        for rate in rates if len(rates) > 1 else ():
            yield {**base, "seed": TUNING_SEED, "rate": rate}
        tuned = [row for row in rows if _in(row["key"], {**base, "seed": TUNING_SEED})]
        if len(rates) == 1:
            best = rates[0]
        elif len(tuned) == len(rates):
            best = min(tuned, key=lambda row: row["loss"])["key"]["rate"]
        else:
            continue
        for seed in SEEDS:
            yield {**base, "seed": seed, "rate": best}


def _kind(algorithm: Algorithm, accounting: AccountingName) -> str:
    """Which learning rates are tried."""
    fixed = {
        Algorithm.FEDAVG: "fedavg",
        Algorithm.LOCAL_ITEM: "item",
        Algorithm.USER_LDP: "user",
    }
    return fixed.get(algorithm, str(accounting))


def _in(key: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    return all(key.get(name) == value for name, value in part.items())


def campaign(name: str, work: Path, texts: Path, results: Path) -> None:
    """Run what is missing, one after another."""
    data = load(name, work, texts)
    while True:
        rows = read_rows(results)
        done = {name_of(row["key"]) for row in rows}
        key = next((key for key in jobs(name, rows) if name_of(key) not in done), None)
        if key is None:
            return
        row = run(name, data, key)
        append_row(results, row)
        print(json.dumps({k: row[k] for k in ("key", "accuracy", "noise_multiplier", "seconds")}))


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per data set, algorithm and accounting, over the reported seeds."""
    found = []
    for name in SETTINGS:
        for algorithm, accounting in CELLS:
            part = [
                row
                for row in rows
                if _in(
                    row["key"],
                    {"data": name, "algorithm": str(algorithm), "accounting": str(accounting)},
                )
                and row["key"]["seed"] in SEEDS
                and "alpha" not in row["key"]
            ]
            if part:
                values = [row["accuracy"] for row in part]
                first = part[0]
                found.append(
                    {
                        "data": name,
                        "algorithm": str(algorithm),
                        "accounting": str(accounting) if algorithm.private else "none",
                        "noise_multiplier": first["noise_multiplier"],
                        "noise_per_unit": first["noise_per_unit"],
                        "rounds": first["rounds"],
                        "local_steps": first["local_steps"],
                        "accuracy": mean(values),
                        "accuracy_std": stdev(values) if len(values) > 1 else float("nan"),
                        "loss": mean(row["loss"] for row in part),
                        "seeds": len(values),
                        "flaws": first["flaws"],
                    }
                )
    return found


PUBLISHED = {
    "FEMNIST": {"subjects": 3500, "items": 145, "batch": 512, "rounds": 100},
    "Shakespeare": {"subjects": 660, "items": 4484, "batch": 100, "rounds": 200},
}
"""Marathe et al. 2023, Section 5. T is not published: taken as one pass over a silo's data."""
LARGEST = 2.5
"""The largest subject of a silo over the mean one: not published either."""


def published_noise(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Noise multipliers at the paper's own sizes; ``paper`` rounds reduced by s."""
    model = MODELS["digits"]
    for name in names:
        setting = PUBLISHED[name]
        items = setting["subjects"] * setting["items"] // SILOS
        mean_size = round(setting["items"] / SILOS)
        p = setting["batch"] / items
        for algorithm in Algorithm:
            if not algorithm.private:
                continue
            constants: dict[str, Any] = {
                "algorithm": algorithm,
                "silos": SILOS,
                "silos_per_round": SILOS,
                "silos_per_subject": SILOS,
                "local_steps": round(1 / p),
                "sampling_probability": p,
                "items_per_silo": items,
                "subjects_per_silo": setting["subjects"],
                "l2_clip_norm": 1.0,
                "learning_rate": 1.0,
                "target_delta": DELTA,
                "model": model,
            }
            paper = FederationPlan.calibrated(
                target_epsilon=EPSILON,
                reduction=Reduction.LINEAR,
                accounting=P,
                rounds=setting["rounds"],
                group_size=round(LARGEST * mean_size),
                **constants,
            )
            tight = FederationPlan.calibrated(
                target_epsilon=EPSILON, rounds=paper.rounds, group_size=mean_size, **constants
            )
            by_group = algorithm is Algorithm.LOCAL_GROUP
            yield {
                "data": name,
                "algorithm": str(algorithm),
                "rounds": paper.rounds,
                "paper": paper.paper_noise_of_group(3) if by_group else paper.noise_multiplier,
                "tight": tight.noise_multiplier,
                "group_size": tight.group_size,
                "flaws": "".join(paper.flaws),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("noise", "run", "table"), default="noise")
    parser.add_argument("--quick", action="store_true", help="noise: FEMNIST's settings alone")
    parser.add_argument("--data", choices=tuple(SETTINGS), default="digits")
    parser.add_argument("--work", type=Path, default=Path("runs/federated"))
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/shakespeare.jsonl.gz"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "run":
        campaign(arguments.data, arguments.work, arguments.texts, arguments.results)
        return
    if arguments.what == "noise":
        rows = list(published_noise(("FEMNIST",) if arguments.quick else tuple(PUBLISHED)))
        if arguments.json:
            print(json.dumps({"rows": rows}))
            return
        print("| data | algorithm | rounds | paper | tight | paper / tight |")
        print("|---|---|---|---|---|---|")
        for row in rows:
            print(
                f"| {row['data']} | {row['algorithm']} | {row['rounds']} | {row['paper']:.3g} "
                f"({row['flaws']}) | {row['tight']:.3g} | {row['paper'] / row['tight']:.2f} |"
            )
        return
    lines = table(read_rows(arguments.results))
    if arguments.json:
        print(json.dumps({"rows": lines}))
        return
    print(
        "| data | algorithm | accounting | σ | σ / denominator | rounds x steps | accuracy | loss |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line['data']} | {line['algorithm']} | {line['accounting']}"
            f"{' (' + line['flaws'] + ')' if line['flaws'] else ''} | "
            f"{line['noise_multiplier']:.3g} | {line['noise_per_unit']:.3g} | "
            f"{line['rounds']} x {line['local_steps']} | {line['accuracy']:.3f} "
            f"± {line['accuracy_std']:.3f} ({line['seeds']}) | {line['loss']:.3f} |"
        )


if __name__ == "__main__":
    main()
