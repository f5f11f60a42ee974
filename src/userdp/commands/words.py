"""For whose eyes an answer is."""

from __future__ import annotations


def for_whom(*, operator_only: bool, why: str) -> str:
    """For whose eyes an answer is, in one sentence; ``why`` follows a colon."""
    return f"{'Operator-only' if operator_only else 'May be handed on'}: {why}."
