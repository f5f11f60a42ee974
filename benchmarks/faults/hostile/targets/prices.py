"""Prices that are remembered: most cases change no mechanism, and its price takes longest."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any


@cache
def remember_prices() -> None:
    """Let plans and selections compute each of their prices once in this process."""
    from userdp.codec import digest
    from userdp.plans import Plan, PrivateSelection, Series

    def remembering(method: Callable[..., Any]) -> Callable[..., Any]:
        known: dict[tuple[str, str], Any] = {}

        @wraps(method)
        def price(self: Any, *arguments: Any, **options: Any) -> Any:
            key = (digest(self), f"{arguments!r} {options!r}")
            if key not in known:
                known[key] = method(self, *arguments, **options)
            return known[key]

        return price

    for kind, names in {
        Plan: ("guarantee", "calibrated"),
        PrivateSelection: ("guarantee",),
        Series: ("guarantee",),
    }.items():
        for name in names:
            setattr(kind, name, remembering(vars(kind)[name]))
