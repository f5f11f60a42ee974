"""No message advises what would undo the guarantee."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import userdp

SOURCE = Path(userdp.__file__).parent

UNDOES = re.compile(
    r"\b(restore|recover|put back)\b[^.;]*\b(copy|backup)\b|"
    r"\b(delete|remove|edit)\b[^.;,]*\bledger\b",
    re.IGNORECASE,
)


def strings() -> Iterator[str]:
    """Every string of the source that may be shown: all but docstrings."""
    for path in SOURCE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        described = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = (node for node in nodes if isinstance(node, ast.Constant))
        values = (node.value for node in constants if id(node) not in described)
        yield from (value for value in values if isinstance(value, str))


@pytest.mark.pitfall(number=43)
def test_no_message_advises_what_forgets_a_charge():
    assert [said for said in strings() if UNDOES.search(said)] == []


@pytest.mark.parametrize("hint", ["restore it from a copy", "delete the ledger, and retry"])
def test_broken_twin_a_hint_that_undoes_the_guarantee_is_caught(hint):
    assert UNDOES.search(hint)
