"""Libraries that only some uses need: the extras of pyproject.toml."""

from __future__ import annotations

import importlib
from typing import Any

from userdp.core.errors import UseError


def library(module: str, *, extra: str, what: str, otherwise: str = "") -> Any:
    """The module of an optional library, imported.

    Args:
        module: its name in Python.
        extra: of userdp, that installs it.
        what: needs it, for the message.
        otherwise: another way out, after the installation.

    Raises:
        UseError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UseError(
            f"{what} needs the library {module.split('.')[0]}, which is not installed",
            hint=f"pip install 'userdp[{extra}]'{otherwise}",
        ) from error
