"""Which errors may be the doing of the rows that were computed."""

from __future__ import annotations

import torch
from torch import distributed as dist

from userdp.errors import UserdpError
from userdp.out_of_memory import ran_out_of_memory

_DEVICE_WORDS = ("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "CUSPARSE_STATUS", "NCCL error")
"""What a device that failed writes into a plain `RuntimeError`."""


def may_be_of_rows(error: BaseException) -> bool:
    """Whether a model or a loss may have raised ``error`` for what somebody's rows say.

    It is not where userdp refuses something, where somebody interrupts, where memory runs out
    (`userdp.gradients.engines.room`), or where a device or another process failed: what such a
    device computes next says nothing.

    >>> may_be_of_rows(ValueError("cannot parse")), may_be_of_rows(KeyboardInterrupt())
    (True, False)
    >>> may_be_of_rows(MemoryError()), may_be_of_rows(RuntimeError("CUDA error: unspecified"))
    (False, False)
    """
    if not isinstance(error, Exception) or isinstance(error, UserdpError):
        return False
    if ran_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
        return False
    if dist.is_available() and isinstance(error, dist.DistError):
        return False
    words = isinstance(error, RuntimeError) and str(error)
    return not (words and any(one in words for one in _DEVICE_WORDS))
