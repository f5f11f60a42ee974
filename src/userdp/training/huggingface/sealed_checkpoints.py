"""The trainer's ``checkpoint-N`` folders: whether they are whole, and which run wrote them.

The trainer writes a checkpoint file by file and ``trainer_state.json`` last, so that a process that
is killed meanwhile leaves half a checkpoint. Among the states of the trainer's callbacks that file
holds our seal: the run, and the digest of the weights, since other scripts write to the same names.
A run goes on only from its own sealed checkpoints: from others it would release what somebody
else's steps have learned.

A checkpoint (weights, optimizer, schedule) is computed from noisy gradients, so the run's claim
covers it. It holds no secret: a resumed run draws new cohorts, noise and masks. It is operator-only
(mode 0700), since a choice among checkpoints should not follow private results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from transformers import TrainerCallback, TrainerState
from transformers.trainer_utils import sort_checkpoints

from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe, digest_of
from userdp.core.errors import FailureError
from userdp.core.interrupts import Held

_SEAL = "userdp"


def seal(state: TrainerState, folder: Path, *, run_id: str, lineage: Lineage) -> None:
    """Put the seal of the checkpoint ``folder`` into ``state``; its weights are written already.

    Args:
        state: of the trainer, which writes it as the last of the checkpoint.
        folder: of the checkpoint.
        run_id: of the run.
        lineage: what the weights descend from, to be noted beside them.
    """
    state.stateful_callbacks[_SEAL] = {"run_id": run_id, "weights": describe(folder, lineage)}


def sealed(folder: Path) -> dict[str, Any] | None:
    """The seal of a checkpoint; None if it is half written, or no private run wrote it."""
    try:
        state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
    except (OSError, ValueError):
        return None
    return cast("dict[str, Any] | None", state.stateful_callbacks.get(_SEAL))


def last_sealed(output: Path) -> Path | None:
    """The last checkpoint that is whole, by attempts."""
    paths = map(Path, reversed(sort_checkpoints(str(output))))
    return next((path for path in paths if sealed(path) is not None), None)


def require_own(folder: Path, *, run_id: str) -> None:
    """`FailureError` unless the run ``run_id`` wrote the checkpoint, and nothing changed it."""
    found = sealed(folder)
    if found is None:
        raise FailureError(
            f"the checkpoint {folder} is not whole, or not of a private run",
            hint="resume with resume_from_checkpoint=True, which takes the last whole one",
        )
    if found != {"run_id": run_id, "weights": digest_of(folder)}:
        raise FailureError(
            f"the checkpoint {folder} is not what this run wrote: its weights are another's",
            hint="put this run's own checkpoint back, or remove this one to go on from an older",
        )


class StopWhenAsked(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """On Ctrl-C or SIGTERM have the loop save a checkpoint, and stop after the step.

    Args:
        signals: that are held back.
    """

    def __init__(self, signals: Held) -> None:
        self._signals = signals

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After the optimizer's step: what was charged is applied."""
        if self._signals.heard:
            control.should_save = control.should_training_stop = True
