"""Many runs of one grid, and the choice of one of them at a claim that covers the choosing."""

from __future__ import annotations

from typing import Any

from userdp.lazily import attribute

_PUBLIC = {
    "request": ("SweepRequest", "build_request"),
    "sweep": ("run_sweep",),
}
__all__ = [name for names in _PUBLIC.values() for name in names]


def __getattr__(name: str) -> Any:
    return attribute(__name__, _PUBLIC, name)
