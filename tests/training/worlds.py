"""Worlds of several processes on this machine, forked from one that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.processes import forking

SECONDS = 240


def start_world(
    size: int, job: Callable[..., Any], folder: Path, *arguments: Any
) -> list[multiprocessing.Process]:
    """``size`` processes that each join the others and call ``job(*arguments)``."""
    context = forking()
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        context.Process(target=_main, args=(rank, size, job, folder, arguments), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    return processes


def results_of(processes: list[multiprocessing.Process], folder: Path) -> list[Any]:
    """What each process returned, or the exception that ended it; None for one that was killed."""
    for process in processes:
        process.join(SECONDS)
        if process.exitcode is None:
            process.kill()
    paths = [folder / f"result-{rank}" for rank in range(len(processes))]
    return [pickle.loads(path.read_bytes()) if path.exists() else None for path in paths]


def run_world(size: int, job: Callable[..., Any], folder: Path, *arguments: Any) -> list[Any]:
    """`start_world` and `results_of`; an exception in a process fails the test."""
    results = results_of(start_world(size, job, folder, *arguments), folder)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert None not in results, "a process was killed, or took too long"
    return results


def _main(
    rank: int, size: int, job: Callable[..., Any], folder: Path, arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=size
    )
    try:
        result = job(*arguments)
    except Exception as error:
        traceback.print_exc()
        result = error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            result = RuntimeError(repr(error))
    temporary = folder / f"part-{rank}"
    temporary.write_bytes(pickle.dumps(result))
    temporary.rename(folder / f"result-{rank}")
    os._exit(0)
