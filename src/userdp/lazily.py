"""Public names of a package, each imported when it is asked for.

So that importing a package imports neither torch nor a database, and its ``__init__`` still shows
all that may be used from outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def attribute(package: str, public: Mapping[str, tuple[str, ...]], name: str) -> Any:
    """What ``name`` is in ``package``; for its ``__getattr__``.

    Args:
        package: its full name.
        public: names by the module of the package that defines them.
        name: that is asked for.

    Raises:
        AttributeError: it is none of them.
    """
    for module, names in public.items():
        if name in names:
            return getattr(import_module(f"{package}.{module}"), name)
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
