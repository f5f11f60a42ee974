"""Fine-tune language models with user-level differential privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from userdp.lazily import attribute
from userdp.version import __version__

if TYPE_CHECKING:
    from userdp.training.private import make_private

__all__ = ["__version__", "make_private"]


def __getattr__(name: str) -> Any:
    """`make_private` is imported when it is asked for: it needs torch, and most commands do not."""
    return attribute("userdp", {"training.private": ("make_private",)}, name)
