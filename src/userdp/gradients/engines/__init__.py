"""Engines: ways to compute the same clipped sum, from the slow oracle to one backward pass.

`get_engine` names them. All share one signature (`Engine`) and one contract test-suite.
"""

from __future__ import annotations

from userdp.core.errors import UseError
from userdp.gradients.engines.choice import auto
from userdp.gradients.engines.engine import Engine
from userdp.gradients.engines.reference import sum_of_units

ENGINES: dict[str, Engine] = {"auto": Engine(auto), "reference": Engine(sum_of_units)}


def get_engine(name: str = "auto") -> Engine:
    """The engine of that name.

    Raises:
        UseError: there is none.

    >>> get_engine("reference") is ENGINES["reference"]
    True
    """
    if name not in ENGINES:
        raise UseError(
            f"there is no gradient engine {name!r}", hint=f"take one of: {', '.join(ENGINES)}"
        )
    return ENGINES[name]


__all__ = ["ENGINES", "Engine", "get_engine"]
