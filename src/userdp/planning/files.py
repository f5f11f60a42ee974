"""JSON files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from userdp.errors import FailureError, UseError


def write_json(path: Path, values: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Write one JSON object under a temporary name, sync it, and rename it to ``path``.

    Raises:
        UseError: the folder is not there.
        FailureError: the disk refused; ``path`` is what it was before.
    """
    if not path.parent.is_dir():
        raise UseError(f"no folder at {path.parent} to put {path.name} in")
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    partial = None
    try:
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.partial", dir=path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(mode)
        Path(partial).replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise FailureError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if partial is not None:
            with contextlib.suppress(OSError):
                Path(partial).unlink()


def read_json(path: Path, *, what: str) -> dict[str, Any]:
    """The JSON object in a file; `UseError` if there is none. ``what`` names it in errors."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UseError(f"cannot read {what} from {path}: {error.strerror}") from error
    except ValueError as error:
        raise UseError(f"cannot read {what} from {path}: {error}") from error
    if not isinstance(values, dict):
        raise UseError(f"cannot read {what} from {path}: it holds no JSON object")
    return values
