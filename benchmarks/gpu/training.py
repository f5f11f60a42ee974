"""A real run on this device: ``userdp train --device cuda`` on the bundled model, then its ledgers.

The store is written here from this package's own source (a module is a user), by the writer of
stores alone: grouping records, which wants DuckDB, has nothing to do where each file is a user.

Passed if: the run's and the store's ledgers have every step and claim the plan's own epsilon; the
store's is settled; the log names this device; and the released weights are finite and have moved.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import userdp
from benchmarks.gpu.setting import Result, Setting
from papers.plans import plan_of_size
from userdp.claims import claim
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.writer import StoreWriter
from userdp.plans import Plan
from userdp.sampling import PoissonUsers

USERS, LENGTH, GROUP, COHORT = 64, 64, 4, 16
BUNDLED = Path(userdp.__file__).parent / "assets" / "base-model" / "model.safetensors"


def trained(setting: Setting, deadline: float) -> Result:
    """Train, and check what is left behind."""
    steps = 2 if setting.tiny else 20
    plan = run_plan(steps=steps)
    with tempfile.TemporaryDirectory(prefix="userdp-gpu-") as folder:
        store, run = Path(folder) / "store", Path(folder) / "run"
        write_store(store)
        command(store, run, plan, setting)
        checks, facts = examine(store, run, plan, setting)
    return {
        "steps": steps,
        **facts,
        "checks": checks,
        "passed": all(checks.values()),
    }


def run_plan(*, steps: int) -> Plan:
    """The constants of a run on `write_store`'s store."""
    return plan_of_size(
        PoissonUsers,
        population=USERS,
        size=COHORT,
        group_size=GROUP,
        steps=steps,
        l2_clip_norm=1.0,
        target_delta=1e-5,
        noise_multiplier=1.0,
    )


def write_store(out: Path, *, held_out: bool = False) -> None:
    """Modules of this package as users, each with up to 8 examples of 64 tokens.

    Every fourth of them is held out, if asked for, and the last example of each of the others.
    """
    tokenizer, tally = StoreTokenizer.load(), Tally()
    root = Path(userdp.__file__).parent
    modules = sorted(root.rglob("*.py"), key=lambda path: -path.stat().st_size)[:USERS]
    named = sorted((str(path.relative_to(root)).encode(), path) for path in modules)
    with StoreWriter.create(out, tokenizer=tokenizer, seq_len=LENGTH) as writer:
        for number, (name, path) in enumerate(named):
            (tokens,) = tokenizer.encode([path.read_text()])
            examples = min(8, len(tokens) // LENGTH)
            cut = np.array(tokens[: examples * LENGTH], dtype=tokenizer.dtype)
            parts = {Split.TRAIN: examples}
            if held_out:
                parts = (
                    {Split.HELD_OUT_USERS: examples}
                    if number % 4 == 0
                    else {Split.TRAIN: examples - 1, Split.HELD_OUT_EXAMPLES: 1}
                )
            for split, count in parts.items():
                part, cut = np.split(cut, [count * LENGTH])
                lengths = np.full(count, LENGTH, dtype=np.int64)
                kept = int(split is not Split.HELD_OUT_EXAMPLES)
                writer.write(name, split, part, lengths, records=kept)
            tally.records_read += 1
            tally.records_stored += 1
        source = {"kind": "modules", "public": True}
        writer.finish(source=source, tally=tally)


def command(store: Path, run: Path, plan: Plan, setting: Setting) -> None:
    """``userdp train`` with a file of the plan; `RuntimeError` if it fails."""
    file = run.with_name("plan.json")
    plan.save(file)
    called = [sys.executable, "-m", "userdp", "train", str(store), "--out", str(run)]
    called += ["--plan", str(file), "--device", setting.device]
    called += ["--set", "learning.precision=bfloat16"]
    done = subprocess.run(
        [*called, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode != 0:
        raise RuntimeError(f"userdp train ended with {done.returncode}: {done.stderr.strip()}")


def examine(store: Path, run: Path, plan: Plan, setting: Setting) -> tuple[dict[str, bool], Result]:
    """What must hold of the run and its store, and what else is worth knowing."""
    of_run, of_store = claim(run / "ledger.jsonl"), claim(store)
    epsilon = plan.guarantee().epsilon
    log = [json.loads(line) for line in (run / "operator.jsonl").read_text().splitlines()]
    machine = next(entry for entry in log if entry["kind"] == "machine")
    took = [entry["seconds"] for entry in log if entry["kind"] == "step"]
    released = load_file(run / "model" / "model.safetensors")
    base = load_file(BUNDLED)
    checks = {
        "every step is in the run's ledger": of_run.complete and of_run.steps == plan.steps,
        "the run claims the plan's epsilon": of_run.guarantee.epsilon == epsilon,
        "the store's ledger is settled": of_store.complete and len(of_store.parts) == 1,
        "the store claims the same": of_store.guarantee.epsilon == epsilon,
        "the log names this device": not setting.on_gpu
        or machine["device"] == torch.cuda.get_device_name(),
        "released weights are finite": all(bool(w.isfinite().all()) for w in released.values()),
        "released weights have moved": any(
            bool((weights != base[name]).any()) for name, weights in released.items()
        ),
    }
    facts = {
        "epsilon": of_run.guarantee.epsilon,
        "machine": machine["device"],
        "seconds_per_step": statistics.median(took),
    }
    return checks, facts
