"""What of a step the trainer may log: an allow-list, so that a new number of theirs stays inside.

A trainer's logs go to the console, to trainer_state.json, to TensorBoard and to services in other
places. None of those is the operator's alone, so only public constants and numbers that were
computed from noisy gradients pass. The exact loss of each step is in operator.jsonl (mode 0600).

TensorBoard notes the time of each number besides, and the time that a step takes tells how many
examples were drawn: its files are the operator's (`close_curves`), whatever their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers.integrations import TensorBoardCallback

from userdp import files

ALLOWED = {
    "learning_rate": "public",
    "epoch": "public: steps over the steps in which everybody is drawn once on average",
    "grad_norm": "of the noisy gradient",
    "epsilon": "the claim of the whole run, stopped or not",
    "delta": "public",
}
"""What passes, and why."""


def public_logs(logs: Mapping[str, Any], *, public_eval: bool) -> dict[str, Any]:
    """The part of ``logs`` that may be seen.

    Args:
        logs: of the trainer.
        public_eval: the evaluation data is nobody's private text, so that its numbers pass.
    """
    return {
        name: value
        for name, value in logs.items()
        if name in ALLOWED or (public_eval and name.startswith("eval_"))
    }


def close_curves(callbacks: Iterable[object], output: Path) -> None:
    """Close the folder of a trainer's TensorBoard files to others, and what is in it.

    Called before the first file is there, and again when all are.
    """
    for one in callbacks:
        if isinstance(one, TensorBoardCallback):
            files.close_folder(Path(one.logging_dir or output / "runs"))
