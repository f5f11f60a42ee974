"""Which errors may be the doing of the rows that were computed."""

from __future__ import annotations

import re

import torch
from torch import distributed as dist

from userdp.errors import UserdpError
from userdp.gradients.losses import LossError
from userdp.out_of_memory import ran_out_of_memory, words_of

_DEVICE_WORDS = re.compile(
    r"(CUDA|CUDA driver|cuDNN|cuBLAS|cuSPARSE|HIP|MIOpen|NCCL) error\b", re.I
)
"""How the message of a device that failed begins, in a plain `RuntimeError`; further on they may be
the words of somebody whose text a message quotes."""


def may_be_of_rows(error: BaseException) -> bool:
    """Whether a model or a loss may have raised ``error`` for what somebody's rows say.

    A loss that answers for them with something that is no loss (`LossError`) is such an error too.

    It is not where userdp refuses something, where somebody interrupts, where memory runs out
    (`userdp.gradients.engines.room`), or where a device or another process failed: what such a
    device computes next says nothing.

    >>> may_be_of_rows(ValueError("cannot parse")), may_be_of_rows(KeyboardInterrupt())
    (True, False)
    >>> may_be_of_rows(MemoryError()), may_be_of_rows(RuntimeError("CUDA error: unspecified"))
    (False, False)
    >>> may_be_of_rows(RuntimeError("cannot parse 'a CUDA error'"))
    True
    """
    if isinstance(error, LossError):
        return True
    if not isinstance(error, Exception) or isinstance(error, UserdpError):
        return False
    if ran_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
        return False
    if dist.is_available() and isinstance(error, dist.DistError):
        return False
    return not (isinstance(error, RuntimeError) and _DEVICE_WORDS.match(words_of(error)))
