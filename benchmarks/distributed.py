"""What several processes gain over one: a private step, side by side in one run.

    python -m benchmarks.distributed [--quick] [--json] [--processes N] [--rounds N] [--sharded]

The step: 16 users of 4 sequences of 128 tokens, a GPT-2 style decoder (d = 256, 4 layers,
vocabulary 8192, float32). In each round process 0 first takes the whole step alone, with one
thread, while the others wait; then all take it together, one thread each: deal, clip, reduce,
noise, hand out. The ideal is a step in 1/N of the time, so

    efficiency = time alone / (N x time together)

``efficiency_wall`` is by the clock on the wall, and means something on N idle cores alone;
``efficiency_cpu`` is by the processor time of all threads of all processes, so it leaves out
waiting, and can be told on a machine that others use; ``balance`` is the mean of the processes'
tokens over the largest, a bound on the efficiency that comes from the dealing. Each is the median
over rounds with a bootstrap 90% interval. ``bytes_reduced`` is what one process hands in per step
(float64), ``bytes_spread`` what it receives (float32), its own share among both.

``--sharded`` takes the model apart by FSDP2 and adds ``ratio_sharded``: processor time of the
step of the sharded engine of all processes over that of the whole-model step of all processes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.step import LENGTH, SETTINGS, VOCABULARY, build, interval
from userdp.gradients import ClippedSum, Units, causal_lm_loss, get_engine
from userdp.gradients.engines.sharded import clipped_sum as sharded_sum
from userdp.gradients.shards import ShardNoise, shard
from userdp.sampling.cohort import Cohort
from userdp.training.distributed import current_world
from userdp.training.distributed_run import Dealing, SharedNoise, deal
from userdp.training.steps import set_gradients

USERS, GROUP = 16, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sharded", action="store_true", help="also FSDP2")
    options = parser.parse_args()
    rounds = 3 if options.quick else options.rounds
    result = measure(processes=options.processes, rounds=rounds, sharded=options.sharded)
    if options.json:
        json.dump(result, sys.stdout)
        print()
        return
    table = Table(title=f"{options.processes} processes", title_justify="left", box=None)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)


def measure(*, processes: int, rounds: int, sharded: bool) -> dict[str, Any]:
    """All numbers of one run."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        started = [
            context.Process(
                target=_process, args=(rank, processes, rounds, sharded, Path(folder), queue)
            )
            for rank in range(processes)
        ]
        for process in started:
            process.start()
        found = sorted((queue.get() for _ in started), key=lambda one: one["rank"])
        for process in started:
            process.join()
    alone, leader = found[0]["alone"], found[0]
    together_wall = leader["together_wall"]
    together_cpu = [sum(parts) for parts in zip(*(f["together_cpu"] for f in found), strict=True)]
    wall = [one[0] / (processes * both) for one, both in zip(alone, together_wall, strict=True)]
    cpu = [one[1] / both for one, both in zip(alone, together_cpu, strict=True)]
    result: dict[str, Any] = {
        "processes": processes,
        "cores": os.cpu_count(),
        "rounds": rounds,
        "efficiency_wall": _rounded(wall),
        "efficiency_cpu": _rounded(cpu),
        "balance": leader["balance"],
        "seconds_alone_cpu": round(statistics.median(one[1] for one in alone), 4),
        "bytes_reduced": leader["bytes"],
        "bytes_spread": leader["bytes"] // 2,
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
    if sharded:
        two = [sum(parts) for parts in zip(*(f["sharded_cpu"] for f in found), strict=True)]
        ratios = [one / base for one, base in zip(two, together_cpu, strict=True)]
        result["ratio_sharded"] = _rounded(ratios)
    return result


def _process(rank: int, size: int, rounds: int, sharded: bool, folder: Path, queue: Any) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size
    )
    model, units = build(_SETTING, device="cpu"), _units()
    tokens = np.full(USERS, GROUP * LENGTH, dtype=np.int64)
    cohort = Cohort(
        users=np.arange(USERS), examples=np.zeros(USERS, int), offsets=np.arange(USERS + 1)
    )
    world = current_world()
    dealing, noise = Dealing(world, lambda _: tokens), SharedNoise(world, model)
    found: dict[str, Any] = {"rank": rank}

    def alone() -> None:
        if rank == 0:
            _finish(model, _clip(model, units))

    def together() -> None:
        mine = dealing.mine(cohort)
        summed, _ = dealing.together(_clip(model, _part(units, mine.users)), 0)
        noise.add_(summed.value, 1.0)
        set_gradients(model, summed.value, denominator=USERS)

    steps: dict[str, Callable[[], None]] = {"alone": alone, "together": together}
    if sharded:
        parts = shard(build(_SETTING, device="cpu"))
        shard_noise = ShardNoise(parts)

        def in_parts() -> None:
            mine = dealing.mine(cohort)
            summed = sharded_sum(
                parts,
                causal_lm_loss,
                _part(units, mine.users),
                l2_clip_norm=1.0,
                micro_batch=8,
            )
            shard_noise.add_(summed.value, 1.0)
            set_gradients(parts, summed.value, denominator=USERS)

        steps["sharded"] = in_parts
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            times[name].append(_timed(step))
    # The first round is a warm-up.
    found["alone"] = times["alone"][1:]
    found["together_wall"] = [wall for wall, _ in times["together"][1:]]
    for name in ("together", "sharded"):
        found[f"{name}_cpu"] = [cpu for _, cpu in times.get(name, [])[1:]]
    loads = np.bincount(deal(tokens, size), weights=tokens, minlength=size)
    found["balance"] = round(float(loads.mean() / loads.max()), 4)
    found["bytes"] = 8 * sum(p.numel() for p in model.parameters())
    queue.put(found)
    dist.destroy_process_group()


def _rounded(values: list[float]) -> list[float]:
    """Median and interval."""
    return [round(value, 4) for value in interval(values)]


_SETTING = next(setting for setting in SETTINGS if setting.key == "full_g4")


def _timed(action: Any) -> tuple[float, float]:
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    action()
    spent = time.process_time() - processor
    dist.barrier()
    return time.perf_counter() - wall, spent


def _units() -> Units:
    draw = np.random.default_rng(0)
    rows = draw.integers(VOCABULARY, size=(USERS * GROUP, LENGTH))
    return Units.from_flat(
        rows.reshape(-1),
        np.arange(len(rows) + 1) * LENGTH,
        np.arange(USERS + 1) * GROUP,
    )


def _part(units: Units, chosen: Any) -> Units:
    parts = [units.select(int(unit), int(unit) + 1) for unit in chosen]
    return Units(
        input_ids=torch.cat([part.input_ids for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        offsets=torch.tensor([0, *(len(part.lengths) for part in parts)]).cumsum(0),
    )


def _clip(model: nn.Module, units: Units) -> ClippedSum:
    return get_engine("auto")(model, causal_lm_loss, units, l2_clip_norm=1.0, micro_batch=8)


def _finish(model: nn.Module, summed: ClippedSum) -> None:
    from userdp.gradients import NoiseSource

    NoiseSource().add_(summed.value, 1.0)
    set_gradients(model, summed.value, denominator=USERS)


if __name__ == "__main__":
    main()
