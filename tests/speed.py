"""Which cases `make test` runs, and which wait for `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

_ParameterSet: Any = type(pytest.param())


def fast_then_slow(cases: Iterable[Any], fast: int = 1) -> list[Any]:
    """For `pytest.mark.parametrize`: the first ``fast`` cases as they are, the others marked slow.

    So each kind of test keeps the cases that tell most in `make test`, which takes minutes, and
    all the others in `make test-slow`. The most telling case stands first. Where several axes are
    crossed, a case is slow if any of its values is: one axis may be left whole.

    Args:
        cases: values of one argument, tuples of several, or what `pytest.param` makes.
        fast: how many stay in `make test`.
    """
    known = list(cases)
    return [*known[:fast], *(_slow(case) for case in known[fast:])]


def _slow(case: Any) -> Any:
    if isinstance(case, _ParameterSet):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    # A tuple is values of several arguments; one value that is a tuple stands in a `pytest.param`.
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
