"""Runs of tests that are not about the self-check count as having passed it earlier.

So a broken twin comes as far as the test that is about it, whatever ran before it, and no test pays
for the check. Those that are about it are marked ``self_check``.
"""

from __future__ import annotations

from userdp.training.checks import combination


def assume_passed() -> None:
    """From here on, in this process."""
    combination.passed_earlier = lambda combined: True
