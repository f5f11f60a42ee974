"""How commands speak: one JSON object or a rendering on stdout, everything else on stderr."""

from __future__ import annotations

import json as json_library
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

stdout = Console(highlight=False)
stderr = Console(stderr=True, highlight=False)


def emit(result: Mapping[str, Any], *, json: bool, render: Callable[[Console], None]) -> None:
    """Print a command's result: as one JSON object if ``json``, else with ``render``.

    Infinite numbers become the string ``"inf"``: JSON has none.
    """
    if json:
        sys.stdout.write(json_library.dumps(_plain(result), allow_nan=False) + "\n")
    else:
        render(stdout)


def print_error(message: str, hint: str | None = None) -> None:
    """An error as ``error: …`` and, where there is a way out, ``hint: …``."""
    stderr.print(f"[bold red]error:[/] {_escape(message)}", soft_wrap=True)
    if hint:
        stderr.print(f"[bold]hint:[/] {_escape(hint)}", soft_wrap=True)


def print_warning(message: str) -> None:
    """Something that the operator should know before it happens, as ``warning: …``."""
    stderr.print(f"[bold yellow]warning:[/] {_escape(message)}", soft_wrap=True)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
