"""Whether an error says that memory ran out, whatever library raised it."""

from __future__ import annotations

import re
from typing import Final

from userdp.core.errors import UserdpError

_WORDS: Final = re.compile(
    r"(\[enforce fail at \w+\.cpp:\d+\].{0,40})?DefaultCPUAllocator: (can't allocate|not enough)"
    r"|CUDA error: out of memory"
    r"|CUDA out of memory"
    r"|MPS backend out of memory"
    r"|\w+ error: (CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
    r"|std::bad_alloc"
)
"""How a message begins that PyTorch writes into a plain `RuntimeError`; only its allocators on
devices have a class. Further on in a message they may be the words of somebody whose text it
quotes."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` is a failed allocation, on the CPU or on a device.

    >>> ran_out_of_memory(MemoryError()), ran_out_of_memory(RuntimeError("std::bad_alloc"))
    (True, True)
    >>> ran_out_of_memory(RuntimeError("shapes differ"))
    False
    >>> ran_out_of_memory(RuntimeError("cannot parse 'CUDA out of memory'"))
    False
    """
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, UserdpError):
        return False
    # By its name: this module is read where torch must not be imported.
    return type(error).__name__ == "OutOfMemoryError" or bool(_WORDS.match(words_of(error)))


def words_of(error: BaseException) -> str:
    """The message of an error of other people's code; none where it cannot even tell that."""
    try:
        return str(error)
    except Exception:  # whatever its own __str__ raises
        return ""
