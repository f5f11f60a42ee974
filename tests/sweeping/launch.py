"""Sweeps of two learning rates, whose trials are counted, and may crash or fail."""

from pathlib import Path
from typing import Any

import pytest

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.core.errors import FailureError
from userdp.sweeping import runs
from userdp.sweeping.request import Choice, TuningMode, build_request, grid
from userdp.training.loop import train

PLAN = uls_plan(cohort_size=8, group_size=2, steps=3, l2_clip_norm=1.0)


def request(store, mode, *, plan=PLAN, config=CONFIG, **choice):
    """Two candidates, and how the best is chosen: a mode of `TuningMode`."""
    if mode == TuningMode.PRIVATE_SELECTION:
        choice = {"mean_trials": 2, "epsilon": 8.0, **choice}
    if mode != TuningMode.NON_PRIVATE:
        pytest.importorskip("opendp", reason="the extra queries is not installed")
    candidates = grid([plan], config, axes={"learning_rate": [0.003, 0.03]})
    return build_request(store, candidates, Choice(tuning=TuningMode(mode), **choice))


class Trials:
    """In place of `userdp.training.loop.train`: the folders that were trained in, and how."""

    def __init__(self, *, crash_before=None, refuse=None):
        self.calls: list[Path] = []
        self.given: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._crash_before, self._refuse = crash_before, refuse

    def __call__(self, *arguments, out, **options):
        self.calls.append(out)
        self.given.append((arguments, options))
        if len(self.calls) == self._crash_before:
            raise KeyboardInterrupt
        if len(self.calls) == self._refuse:
            raise FailureError("the machine is out of memory", hint="buy more")
        return train(*arguments, out=out, **options)


def swept(store, out, asked, *, trials=None, **options):
    """`run_sweep`, whose trials are counted."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runs, "train", trials or Trials())
        return runs.run_sweep(store, out, asked, **options)
