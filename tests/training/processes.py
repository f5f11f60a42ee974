"""Real processes that run the command line, forked from one that has torch loaded already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

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
