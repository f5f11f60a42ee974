"""A federation of text with the bundled language model: loss before and after, and its claim.

    python -m benchmarks.federated_text run --texts FILE   # goes on where it stopped
    python -m benchmarks.federated_text table

The design is `papers/designs/marathe-text.toml`, committed before the first run; each
row of `docs/results/papers/marathe-text.jsonl` carries its digest. Runs are real ones: a store, a
run and ledgers for each silo, and the ε that is told is recomputed from the ledgers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from scipy import stats

from papers.studies.intervals import Estimate, holm
from papers.studies.runs import Row, append_row, name_of, read_rows
from userdp.data.progress import NoProgress
from userdp.data.records import Record, Tally
from userdp.data.sources import open_source
from userdp.data.tokenize import StoreTokenizer
from userdp.federated.algorithms import Declared
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import FederationPlan, LanguageModel
from userdp.federated.rounds import MODEL_FILE, save_weights
from userdp.federated.simulation import claim_of, make_federation, measure, run_in_process
from userdp.plans import Budget, Plan

DESIGN = Path("papers/designs/marathe-text.toml")
RESULTS = Path("docs/results/papers/marathe-text.jsonl")
_before: dict[int, float] = {}


@cache
def design() -> dict[str, Any]:
    """The file's values."""
    return tomllib.loads(DESIGN.read_text(encoding="utf-8"))


def first_records(texts: Path, most: int) -> list[Record]:
    """The first records of every user, in the file's order."""
    kept: list[Record] = []
    seen: dict[bytes, int] = {}
    for record in open_source([str(texts)]).records(Tally(), NoProgress()):
        seen[record.user] = seen.get(record.user, 0) + 1
        if seen[record.user] <= most:
            kept.append(record)
    return kept


def plan_of(key: Row, tokenizer: StoreTokenizer) -> FederationPlan:
    """The plan of one run."""
    common = design()["common"]
    return FederationPlan.calibrated(
        Declared(
            items_per_silo=common["items_per_silo"],
            subjects_per_silo=common["subjects_per_silo"],
            group_size=common["group_size"],
            batch_size=float(common["batch"]),
            local_steps=common["local_steps"],
            l2_clip_norm=common["clip_norm"],
            budget=Budget(target_epsilon=common["epsilon"], target_delta=common["delta"]),
        ),
        algorithm=key["algorithm"],
        silos=common["silos"],
        silos_per_round=common["silos_per_round"],
        silos_per_subject=common["silos_per_subject"],
        rounds=common["rounds"],
        learning_rate=key["rate"],
        model=LanguageModel(
            model=common["model"],
            lora_rank=common["lora_rank"],
            seed=key["seed"],
            seq_len=common["seq_len"],
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
        ),
    )


def run(key: Row, records: Sequence[Record]) -> Row:
    """One federation: its held-out loss before the first round and after the last one."""
    began = time.process_time()
    tokenizer = StoreTokenizer.load(None)
    plan = plan_of(key, tokenizer)
    start = weights_of(build_model(plan.model)[0])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "federation"
        make_federation(folder, plan, records, tokenizer=tokenizer, seed=key["seed"])
        save_weights(folder / MODEL_FILE, start, rounds=0)
        # What is held out and the first weights are the same in all runs of a seed.
        before = _before.get(key["seed"]) or measure(folder, plan)["loss"]
        _before[key["seed"]] = before
        run_in_process(folder, plan)
        after = measure(folder, plan)
        claim = claim_of(folder)
    local = plan.local if isinstance(plan.local, Plan) else None
    return {
        "key": key,
        "loss_before": before,
        "loss": after["loss"] if math.isfinite(after["loss"]) else None,
        "held_out_items": after["held_out_items"],
        "items_left_out_by_the_cap": after["items_left_out_by_the_cap"],
        "trainable": sum(array.size for array in start.values()),
        "noise_multiplier": local.noise.multiplier if local else 0.0,
        "noise_per_unit": local.noise.multiplier / local.denominator if local else 0.0,
        "epsilon": claim.guarantee.epsilon if local else None,
        "complete": claim.complete,
        "seconds": round(time.process_time() - began, 2),
        "design": hashlib.sha256(DESIGN.read_bytes()).hexdigest(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def next_key(rows: Sequence[Row]) -> Row | None:
    """What is to run next: all rates of an algorithm on the tuning seed, then its best one."""
    have = {name_of(row["key"]) for row in rows}
    algorithms, tuning = design()["cells"]["algorithm"], design()["tuning_seed"]
    tries: list[Row] = [
        {"algorithm": algorithm, "rate": rate, "seed": tuning}
        for algorithm in algorithms
        for rate in design()["tuning"]["rates"]
    ]
    left = [key for key in tries if name_of(key) not in have]
    if not left:
        left = [
            {"algorithm": algorithm, "rate": tuned(rows, algorithm), "seed": seed}
            for seed in design()["seeds"]
            for algorithm in algorithms
        ]
    return next((key for key in left if name_of(key) not in have), None)


def tuned(rows: Sequence[Row], algorithm: str) -> float:
    """The rate of the least held-out loss on the tuning seed; a loss that is not finite loses."""
    tried = [
        row
        for row in rows
        if (row["key"]["algorithm"], row["key"]["seed"]) == (algorithm, design()["tuning_seed"])
    ]
    best = min(tried, key=lambda row: math.inf if row["loss"] is None else row["loss"])
    return float(best["key"]["rate"])


def paired(differences: Sequence[float]) -> Estimate:
    """Student's interval of the mean of paired differences."""
    told = stats.ttest_1samp(differences, 0.0)
    low, high = told.confidence_interval(0.95)
    return Estimate(value=mean(differences), low=float(low), high=float(high), p=float(told.pvalue))


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a line for each algorithm."""
    measured = {
        algorithm: {
            row["key"]["seed"]: row
            for row in rows
            if row["key"]["algorithm"] == algorithm and row["key"]["seed"] in design()["seeds"]
        }
        for algorithm in design()["cells"]["algorithm"]
    }
    changes = {
        algorithm: paired([row["loss"] - row["loss_before"] for row in own.values()])
        for algorithm, own in measured.items()
    }
    told = dict(zip(changes, holm(list(changes.values())), strict=True))
    plain = measured["fedavg"]
    yield (
        "| algorithm | ε of the ledgers | σ | σ / denominator | rate | seeds | loss before | "
        "after | change | told from zero (Holm) | less FedAvg's |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for algorithm, own in measured.items():
        first = next(iter(own.values()))
        apart = "-"
        if algorithm != "fedavg":
            apart = str(paired([row["loss"] - plain[seed]["loss"] for seed, row in own.items()]))
        epsilon = "none" if first["epsilon"] is None else f"{first['epsilon']:.4f}"
        yield (
            f"| {algorithm} | {epsilon} | {first['noise_multiplier']:.3g} | "
            f"{first['noise_per_unit']:.3g} | {first['key']['rate']:g} | {len(own)} | "
            f"{mean(row['loss_before'] for row in own.values()):.4f} | "
            f"{mean(row['loss'] for row in own.values()):.4f} | {changes[algorithm]} | "
            f"{'yes' if told[algorithm] else 'no'} | {apart} |"
        )
    seconds = sum(row["seconds"] for row in rows)
    yield from ("", f"{len(rows)} runs, {seconds / 60:.1f} minutes of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--texts", type=Path, default=Path("../shared/data/shakespeare.jsonl.gz"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "table":
        print("\n".join(table(read_rows(arguments.results))))
        return
    records = first_records(arguments.texts, design()["common"]["records_per_subject"])
    while (key := next_key(read_rows(arguments.results))) is not None:
        row = run(key, records)
        append_row(arguments.results, row)
        shown = ("key", "loss_before", "loss", "epsilon", "seconds")
        print(json.dumps({name: row[name] for name in shown}), flush=True)


if __name__ == "__main__":
    main()
