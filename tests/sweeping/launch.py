"""Trials that are counted, and may crash or fail."""

from pathlib import Path
from typing import Any

import pytest

from userdp.core.errors import FailureError
from userdp.sweeping import runs
from userdp.training.loop import train


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
