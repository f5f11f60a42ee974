"""Modes of tests and benchmarks under which engines prove a pass as they would without.

Engines trust no mode but the package's own: one that is told of all numbers may hand them to the
model (`userdp.gradients.engines.out_of_sight`). Under such a mode each unit is computed alone, and
what was to be watched is not there.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self
from unittest import mock

from torch.utils._python_dispatch import TorchDispatchMode

from userdp.gradients.engines import out_of_sight


class TrustedMode(TorchDispatchMode):
    """A mode that tells no model what it sees; nor do the classes of tensors of its package."""

    def __enter__(self) -> Self:
        package = type(self).__module__.partition(".")[0]
        self._trust = ExitStack()
        for name, more in (("_MODES", f"{package}."), ("_LIBRARIES", package)):
            trusted = (*getattr(out_of_sight, name), more)
            self._trust.enter_context(mock.patch.object(out_of_sight, name, trusted))
        _forget()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._trust.close()
        _forget()


def _forget() -> None:
    out_of_sight._is_strange.cache_clear()
    out_of_sight._is_torchs.cache_clear()
