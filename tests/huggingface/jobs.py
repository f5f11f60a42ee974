"""What a process of its own runs, to be killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from pathlib import Path

from tests.training.processes import forking

STEPS = 200


def start(folder: Path) -> multiprocessing.Process:
    """Begin the run in ``folder``, or go on with it, in a process that has loaded everything."""
    process = forking().Process(target=_train, args=(folder,), daemon=True)
    process.start()
    return process


def warm_up() -> None:
    """Let the server that forks all processes load what they need."""
    process = forking().Process(target=_nothing, daemon=True)
    process.start()
    process.join()


def _nothing() -> None:
    import tests.huggingface.toy  # noqa: F401


def _train(folder: Path) -> None:
    from tests.huggingface.toy import trainer
    from tests.plans import uls_plan
    from userdp.ledger import RunFolder

    try:
        output = RunFolder(folder / "out")
        if output.ledger.exists() and output.finished:  # killed after its last line
            os._exit(0)
        begun = output.resume.exists()
        run = trainer(folder, plan=uls_plan(steps=STEPS), arguments={"save_steps": 2})
        run.train(resume_from_checkpoint=begun)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
