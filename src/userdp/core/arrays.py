"""Arrays in files of NumPy's own format, read without trust in what their headers say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError, kind_of


def read_array(path: Path, *, what: str) -> NDArray[np.float64]:
    """A row of float64 that `numpy.save` wrote.

    Guarantee: nothing is unpickled, and no more memory taken than the file is long, whatever shape
    its header names.

    Args:
        path: of the file.
        what: names it in errors.

    Raises:
        UseError: there is no such file, or it holds something else.
    """
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        values = np.array(mapped)
    except Exception as error:  # the header is parsed as Python, which raises of many kinds
        raise UseError(f"cannot read {what} from {path}: {kind_of(error)}") from error
    if values.ndim != 1 or values.dtype != np.float64:
        raise UseError(f"cannot read {what} from {path}: it holds an array of another kind")
    return values
