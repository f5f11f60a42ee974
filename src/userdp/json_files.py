"""JSON files that are there whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from userdp.errors import FailureError, UseError
from userdp.files import SHAREABLE_FILE, write_file


def write_json(path: Path, values: Mapping[str, Any], *, mode: int = SHAREABLE_FILE) -> None:
    """Write one JSON object under a temporary name, sync it, and rename it to ``path``.

    Raises:
        UseError: the folder is not there.
        FailureError: the disk refused; ``path`` is what it was before.
    """
    if not path.parent.is_dir():
        raise UseError(f"no folder at {path.parent} to put {path.name} in")
    try:
        write_file(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode(), mode=mode)
    except OSError as error:
        raise FailureError(f"cannot write {path}: {error.strerror}") from error


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
