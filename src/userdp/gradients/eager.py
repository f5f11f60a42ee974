"""Code compiled by `torch.compile`, run as it is written where a pass must see its functions."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

import torch


def eagerly() -> AbstractContextManager[None]:
    """Within, what was compiled by `torch.compile` runs as it is written."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled; importing it takes seconds
        return nullcontext()
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
