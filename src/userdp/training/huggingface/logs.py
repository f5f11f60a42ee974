"""What of a step the trainer may log: an allow-list, so that a new number of theirs stays inside.

A trainer's logs go to the console, to trainer_state.json, to TensorBoard and to services in other
places. None of those is the operator's alone, so only public constants and numbers that were
computed from noisy gradients pass. The exact loss of each step is in operator.jsonl (mode 0600).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
