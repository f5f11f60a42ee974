"""What glibc does with memory that a program frees, as a process is told when it begins."""

from __future__ import annotations

import os
import sys

_NAMES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")

KEEP = dict.fromkeys(_NAMES, str(1 << 40))
"""Freed memory is kept: the time of a step is then its own, not the system's that clears pages."""

RETURN = dict.fromkeys(_NAMES, str(1 << 17))
"""It is returned at once: a peak is then what is needed, not what an allocator keeps."""


def begin_again_keeping() -> None:
    """Run this program anew, as it was called, with `KEEP`; nothing where it has a setting."""
    if _NAMES[0] not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **KEEP})
