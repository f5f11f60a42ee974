"""Federations of 16 silos at ε = 4, δ = 1e-5: the algorithms under both accountings, in small.

    python -m benchmarks.federated                    # noise multipliers at the paper's sizes
    python -m benchmarks.federated run --data digits
    python -m benchmarks.federated table

Every run's row is written as it ends, and none is run twice; a killed campaign goes on. A learning
rate is chosen on a seed of its own (`TUNING_SEED`) where several are listed, then used for the
reported ones.

The ``paper`` variants were fixed before any run: its noise, mini-batches and T steps a round, and
rounds reduced by s (`Reduction.LINEAR`; √s was published, see `benchmarks.marathe`). The ``tight``
ones may choose rounds, steps, batches and the cap k by public reasoning: one step a round with a
larger batch.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from benchmarks.federated_characters import CharacterLSTM, character_tokenizer
from papers.marathe.published import (
    FOR_SUBJECTS,
    LOCAL_GROUP,
    Published,
    Reduction,
    flaws_of,
)
from papers.studies.runs import append_row, name_of, read_rows
from userdp.data.progress import NoProgress
from userdp.data.records import Record, Tally
from userdp.data.sources import open_source
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.federated.algorithms import ALGORITHMS, Declared
from userdp.federated.data import HELD_OUT, number_tokenizer, spread
from userdp.federated.digits import digits
from userdp.federated.plan import STORE, FederationPlan, LeafCNN, ModelSpec
from userdp.federated.rounds import MODEL_FILE, save_weights
from userdp.federated.silo import silo_folder
from userdp.federated.simulation import claim_of, make_federation, measure, run_in_process
from userdp.plans import Budget, Plan

RESULTS = Path("docs/results/federated.jsonl")
SILOS, EPSILON, DELTA = 16, 4.0, 1e-5
SEEDS, TUNING_SEED = (0, 1, 2), 100

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

SEQ_LEN = {"digits": 65, "shakespeare": 21}


def tokenizer_of(name: str) -> StoreTokenizer:
    """The tokenizer of a data set: numbers for images, characters for text."""
    return number_tokenizer() if name == "digits" else character_tokenizer()


def model_of(name: str) -> ModelSpec:
    """The model of a data set."""
    tokenizer = tokenizer_of(name)
    facts: dict[str, Any] = {
        "tokenizer_sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "seq_len": SEQ_LEN[name],
    }
    if name == "digits":
        return LeafCNN(width=2, classes=10, **facts)
    return CharacterLSTM(width=24, **facts)


T, P, N = "tight", "paper", "none"
CELLS: tuple[tuple[str, str], ...] = (
    ("local-item-dp", T),
    ("higradavg-dp", P),
    ("higradavg-dp", T),
    ("local-group-dp", P),
    ("local-group-dp", T),
    ("fedavg", T),
    ("user-ldp", P),
    ("user-ldp", T),
    ("local-item-dp", P),
)
"""In the order in which they run: what the question needs most comes first."""


def load(name: str, texts: Path) -> list[Record]:
    """The records of a data set."""
    if name == "digits":
        return digits(subjects=3500, items_per_subject=24)
    return list(open_source([str(texts)]).records(Tally(), NoProgress()))


def plan_for(
    name: str,
    algorithm: str,
    accounting: str,
    records: Sequence[Record],
    *,
    rate: float,
    seed: int,
    alpha: float | None,
) -> FederationPlan | Published:
    """The plan of one cell; nominal sizes are the mean ones, rounded, declared public here."""
    settings = SETTINGS[name]
    paper = accounting == P or algorithm == "fedavg"
    # LocalItemDP keeps the paper's batches in both: its protection and its price are the same.
    item = algorithm == "local-item-dp"
    shape = settings["paper"] if paper or item else settings["tight"]
    parts = spread(records, silos=SILOS, most=SILOS, seed=seed, alpha=alpha)
    counts = [_item_counts(name, part) for part in parts]
    items = round((1 - HELD_OUT) * float(np.mean([own.sum() for own in counts])), -1)
    capped = not paper and not item
    constants: dict[str, Any] = {
        "declared": Declared(
            batch_size=min(float(items), shape["batch"]),
            items_per_silo=int(items),
            subjects_per_silo=round(float(np.mean([len(own) for own in counts]))),
            group_size=settings["tight"]["cap"]
            if capped
            else max(int(own.max()) for own in counts),
            l2_clip_norm=settings["clip"],
            local_steps=shape["local_steps"],
            budget=Budget(target_delta=DELTA, target_epsilon=EPSILON),
        ),
        "algorithm": algorithm,
        "silos": SILOS,
        "silos_per_round": SILOS,
        "silos_per_subject": SILOS,
        "rounds": settings["rounds"],
        "learning_rate": rate,
        "model": model_of(name),
    }
    if accounting == P:
        return Published.calibrated(reduction=Reduction.LINEAR, **constants)
    return FederationPlan.calibrated(**constants)


def _item_counts(name: str, part: Sequence[Record]) -> np.ndarray:
    """Items of each subject of a silo, held-out ones included."""
    size = {"digits": 10**9, "shakespeare": SEQ_LEN["shakespeare"]}[name]
    counts: dict[bytes, int] = {}
    for record in part:
        counts[record.user] = counts.get(record.user, 0) + -(-len(record.text) // size)
    return np.array(list(counts.values()))


def run(name: str, records: Sequence[Record], key: Mapping[str, Any]) -> dict[str, Any]:
    """One federation, from its key."""
    algorithm, seed, alpha = key["algorithm"], key["seed"], key.get("alpha")
    made = plan_for(
        name, algorithm, key["accounting"], records, rate=key["rate"], seed=seed, alpha=alpha
    )
    published = made if isinstance(made, Published) else None
    plan = published.plan if published else made
    assert isinstance(plan, FederationPlan)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "federation"
        tokenizer = tokenizer_of(name)
        make_federation(folder, plan, records, tokenizer=tokenizer, seed=seed, alpha=alpha)
        if published:
            stores = [UserStore.open(silo_folder(folder, i) / STORE) for i in range(SILOS)]
            save_weights(folder / MODEL_FILE, published.run(stores), rounds=plan.rounds)
        else:
            run_in_process(folder, plan)
        claimed = None if published else claim_of(folder).guarantee.epsilon
        measured = measure(folder, plan)
    local = plan.local if isinstance(plan.local, Plan) else None
    noise = local.noise.multiplier if local else 0.0
    if published and algorithm == LOCAL_GROUP:
        noise = published.noise_of_group(2)
    return {
        "key": dict(key),
        "accuracy": measured.get("accuracy"),
        "loss": measured["loss"],
        "noise_multiplier": noise,
        "noise_per_unit": noise / local.denominator if local else 0.0,
        "rounds": plan.rounds,
        "local_steps": plan.local.steps,
        "group_size": local.sampling.group_size if local else None,
        "charged_steps": plan.charged_steps,
        "epsilon": claimed if local else None,
        "claims": [] if published else [asdict(g) for g in plan.guarantees()],
        "flaws": flaws_of(algorithm, Reduction.LINEAR) if published else "",
        "seconds": time.process_time() - began,
    }


def jobs(name: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Keys of what is to run: all rates on the tuning seed, then the best rate on the others."""
    for algorithm, accounting in CELLS:
        rates = SETTINGS[name]["rates"][_kind(algorithm, accounting)]
        base = {"data": name, "algorithm": algorithm, "accounting": accounting}
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


def _kind(algorithm: str, accounting: str) -> str:
    """Which learning rates are tried."""
    fixed = {"fedavg": "fedavg", "local-item-dp": "item", "user-ldp": "user"}
    return fixed.get(algorithm, accounting)


def _in(key: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    return all(key.get(name) == value for name, value in part.items())


def campaign(name: str, texts: Path, results: Path) -> None:
    """Run what is missing, one after another."""
    records = load(name, texts)
    while True:
        rows = read_rows(results)
        done = {name_of(row["key"]) for row in rows}
        key = next((key for key in jobs(name, rows) if name_of(key) not in done), None)
        if key is None:
            return
        row = run(name, records, key)
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
                    {"data": name, "algorithm": algorithm, "accounting": accounting},
                )
                and row["key"]["seed"] in SEEDS
                and "alpha" not in row["key"]
            ]
            if part:
                values = [float(row["accuracy"] or "nan") for row in part]
                first = part[0]
                found.append(
                    {
                        "data": name,
                        "algorithm": algorithm,
                        "accounting": N if algorithm == "fedavg" else accounting,
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
    """Noise multipliers at the paper's own sizes, for rounds reduced by √s and by s."""
    for name in names:
        setting = PUBLISHED[name]
        items = setting["subjects"] * setting["items"] // SILOS
        mean_size = round(setting["items"] / SILOS)
        p = setting["batch"] / items
        for algorithm in ALGORITHMS:
            if algorithm == "fedavg":
                continue
            declared = Declared(
                items_per_silo=items,
                subjects_per_silo=setting["subjects"],
                group_size=round(LARGEST * mean_size),
                batch_size=setting["batch"],
                local_steps=round(1 / p),
                l2_clip_norm=1.0,
                budget=Budget(target_delta=DELTA, target_epsilon=EPSILON),
            )
            constants: dict[str, Any] = {
                "algorithm": algorithm,
                "silos": SILOS,
                "silos_per_round": SILOS,
                "silos_per_subject": SILOS,
                "learning_rate": 1.0,
                "model": model_of("digits"),
            }
            for reduction in Reduction if algorithm in FOR_SUBJECTS else (Reduction.PUBLISHED,):
                paper = Published.calibrated(
                    declared, rounds=setting["rounds"], reduction=reduction, **constants
                )
                tight = FederationPlan.calibrated(
                    replace(declared, group_size=mean_size), rounds=paper.plan.rounds, **constants
                )
                assert isinstance(tight.local, Plan)
                by_group = algorithm == LOCAL_GROUP
                yield {
                    "data": name,
                    "algorithm": algorithm,
                    "reduction": str(reduction),
                    "rounds": paper.plan.rounds,
                    "paper": paper.noise_of_group(3) if by_group else paper.local.noise.multiplier,
                    "tight": tight.local.noise.multiplier,
                    "group_size": mean_size,
                    "flaws": flaws_of(algorithm, reduction),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("noise", "run", "table"), default="noise")
    parser.add_argument("--quick", action="store_true", help="noise: FEMNIST's settings alone")
    parser.add_argument("--data", choices=tuple(SETTINGS), default="digits")
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/shakespeare.jsonl.gz"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "run":
        campaign(arguments.data, arguments.texts, arguments.results)
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
