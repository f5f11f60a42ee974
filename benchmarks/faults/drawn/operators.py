"""Operators of mutation that cosmic-ray does not have: a call left out, an extreme exchanged.

Checks are calls whose value nobody uses (``require_positive("sigma", sigma)``), and bounds are
``min`` and ``max``: a privacy tool fails most silently where one of these is missing or wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Name

_OTHER = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any"}


class CallLeftOut(Operator):  # cosmic-ray has no types
    """Leaves out a statement that is a call."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """See the base."""
        if node.type == "simple_stmt" and _is_call(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """See the base."""
        first = node.children[0]
        node.children[0] = Name("pass", first.start_pos, prefix=first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See the base."""
        return (Example("check(x)\n", "pass\n"),)


class ExtremeExchanged(Operator):  # cosmic-ray has no types
    """Puts ``max`` for ``min``, ``floor`` for ``ceil``, ``all`` for ``any``, and the reverse."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """See the base."""
        if isinstance(node, Name) and node.value in _OTHER:
            following = node.get_next_leaf()
            if following is not None and following.value == "(":
                yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """See the base."""
        node.value = _OTHER[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See the base."""
        return (Example("x = min(a, b)", "x = max(a, b)"),)


def _is_call(node: Any) -> bool:
    if node.type not in ("atom_expr", "power"):
        return False
    last = node.children[-1]
    return bool(last.type == "trailer" and last.children[0].value == "(")
