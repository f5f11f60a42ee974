"""What is done about memory between an attempt that ran out of it and the next one."""

from __future__ import annotations

import gc

import torch


def let_go_of_memory() -> None:
    """Give back what an attempt that failed left: cycles of objects, and what devices keep.

    Call it when the error is gone: its trace holds the frames of the attempt, and these hold the
    tensors.
    """
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where no such device is in use
