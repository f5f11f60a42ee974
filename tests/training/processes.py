"""Real processes, forked from one that has torch loaded: a command line, or worlds of several."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from userdp.cli.app import run as userdp


def forking() -> ForkServerContext:
    """Starts processes that have loaded what takes seconds.

    One server forks them all, and loads what its first caller asked for: so everybody asks for the
    same, what worlds of several processes need included.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "userdp.commands.train",
            "userdp.training.loop",
            "transformers.models.gpt2.modeling_gpt2",
            "peft",
            "torch.distributed.fsdp",
            "torch.distributed.tensor",
            "pandas",  # pyarrow loads it when a column is first read
            "tests.gradients.sharded_jobs",
            "tests.training.selftest_jobs",
            "tests.training.distributed_jobs",
            "tests.huggingface.toy",
        ]
    )
    return context


def start(
    arguments: list[str], *, most_bytes: int | None = None, stderr: Path | None = None
) -> multiprocessing.Process:
    """Run ``userdp ARGUMENTS`` in a process of its own.

    Args:
        arguments: of the command line.
        most_bytes: no file may grow beyond (`RLIMIT_FSIZE`).
        stderr: where its errors go.
    """
    process = forking().Process(target=_main, args=(arguments, most_bytes, stderr), daemon=True)
    process.start()
    return process


def _main(arguments: list[str], most_bytes: int | None, stderr: Path | None) -> None:
    import torch

    sys.dont_write_bytecode = True  # a limit on files would leave half of a module for everybody
    torch.set_num_threads(1)
    # As in a terminal: whatever a shell starts in the background ignores it, and so its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if stderr is not None:
        os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    if most_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    status = userdp(arguments)
    sys.stderr.flush()
    os._exit(status)


SECONDS = 240


def start_world(
    size: int, job: Callable[..., Any], folder: Path, *arguments: Any
) -> list[multiprocessing.Process]:
    """``size`` processes that each join the others and call ``job(*arguments)``."""
    context = forking()
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        context.Process(target=_join, args=(rank, size, job, folder, arguments), daemon=True)
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


def _join(
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
