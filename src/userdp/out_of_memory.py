"""Whether an error says that memory ran out, whatever library raised it."""

from __future__ import annotations

from typing import Final

from userdp.errors import UserdpError

_WORDS: Final = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA error: out of memory",
    "CUDA out of memory",
    "MPS backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""What PyTorch writes into a plain `RuntimeError`; only its allocators on devices have a class."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is a failed allocation, on the CPU or on a device.

    >>> ran_out_of_memory(MemoryError()), ran_out_of_memory(RuntimeError("std::bad_alloc"))
    (True, True)
    >>> ran_out_of_memory(RuntimeError("shapes differ"))
    False
    """
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, UserdpError):
        return False
    # By its name: this module is read where torch must not be imported.
    return type(error).__name__ == "OutOfMemoryError" or any(
        words in str(error) for words in _WORDS
    )
