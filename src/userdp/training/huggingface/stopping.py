"""Ctrl-C and SIGTERM in the loop of `transformers.Trainer`: it saves, and stops between steps."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from userdp.interrupts import Held


class StopWhenAsked(TrainerCallback):  # type: ignore[misc]
    """Have the loop save a checkpoint and stop after the step in which a signal came.

    Args:
        signals: that are held back.
    """

    def __init__(self, signals: Held) -> None:
        self._signals = signals

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """After the optimizer's step: what was charged is applied."""
        if self._signals.heard:
            control.should_save = control.should_training_stop = True
