"""Runs of tests that are not about the self-check count as having passed it earlier.

So a broken twin comes as far as the test that is about it, whatever ran before it, and no test pays
for the check. Those that are about it are marked ``self_check``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from userdp.training.checks import combination


def assume_passed() -> None:
    """From here on, in this process: one that a test started."""
    combination.passed_earlier = lambda combined: True


@contextmanager
def assumed_passed() -> Iterator[None]:
    """Within: for fixtures of more than one test, which stand before what each test assumes."""
    with mock.patch.object(combination, "passed_earlier", return_value=True):
        yield
