"""The log that only the operator may see: operator.jsonl, and the curves of trackers."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from userdp.core import files
from userdp.core.errors import warn
from userdp.ledger import RunFolder
from userdp.plans import Plan
from userdp.training.config import PlainPlan
from userdp.training.step_mechanism import Step

_SOON = 5
"""Steps after which the mean cohort is held against the expected one."""
_CURVES = ("loss", "units", "clipped_fraction", "seconds", "learning_rate")


class OperatorLog:
    """Writes operator.jsonl, and the curves of the trackers that `transformers` knows.

    Args:
        folder: of the run.
        plan: whose expected cohort is held against what is drawn, after a few steps.
        writes: only rank 0 does; with False everything here does nothing.
        report_to: integrations of `transformers` that draw curves, by name. What they write lies in
            a folder of its own (mode 0700), or where the operator sends it.
    """

    def __init__(
        self, folder: RunFolder, plan: Plan | PlainPlan, *, writes: bool, report_to: tuple[str, ...]
    ) -> None:
        self._folder = folder if writes else None
        self._expected = plan.denominator if writes and isinstance(plan, Plan) else None
        self._units = "users" if isinstance(plan, Plan) and plan.sampling.by_user else "examples"
        self._drawn: list[float] = []
        self._callbacks: list[Any] = []
        if writes and report_to:
            from transformers import TrainerControl, TrainerState, TrainingArguments
            from transformers.integrations import get_reporting_integration_callbacks

            files.operator_folder(folder.curves)
            os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(folder.curves))
            self._state = TrainerState()
            self._told = TrainingArguments(str(folder.curves)), self._state, TrainerControl()
            self._callbacks = [kind() for kind in get_reporting_integration_callbacks(report_to)]
            for callback in self._callbacks:
                callback.on_train_begin(*self._told)

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line, and a point to each curve of which there is a number."""
        if self._folder is not None:
            self._folder.log({"kind": kind, **values})
        what = "eval_" if kind == "evaluation" else ""
        drawn = {f"{what}{n}": values[n] for n in _CURVES if values.get(n) is not None}
        for callback in self._callbacks if drawn else ():
            self._state.global_step = values["step"]
            callback.on_log(*self._told, logs=drawn)

    def step(self, step: Step, *, rate: float) -> None:
        """The step's exact numbers; nothing of a run that keeps none."""
        if not step.operator:
            return
        self.write("step", {"step": step.number, **step.operator, "learning_rate": rate})
        self._drawn.append(float(step.operator.get("units", 0)))
        expected = self._expected
        if expected is not None and len(self._drawn) == _SOON:
            mean = fmean(self._drawn)
            if abs(mean - expected) > max(expected / 2, 4 * math.sqrt(expected / _SOON)):
                warn(
                    f"{mean:.4g} {self._units} were drawn a step, and {expected:.4g} are expected "
                    "of the declared population: the claim holds, and the noise is made for the "
                    "declared number. For the operator alone; a population may not follow it."
                )

    def close(self) -> None:
        """Write what is pending."""
        for callback in self._callbacks:
            callback.on_train_end(*self._told)
