"""Engines: ways to compute the same clipped sum, from the slow oracle to one backward pass.

`get_engine` names them. All share one signature (`Engine`) and one contract test-suite.
"""

from __future__ import annotations

from functools import partial

from userdp.errors import UseError
from userdp.gradients.engines.choice import auto, one_by_one
from userdp.gradients.engines.engine import Engine
from userdp.gradients.engines.room import sum_that_fits

ENGINES: dict[str, Engine] = {
    "auto": Engine(partial(sum_that_fits, auto)),
    "reference": Engine(partial(sum_that_fits, one_by_one)),
}


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
