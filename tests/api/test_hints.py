"""Errors and warnings speak of options on the command line, and of arguments in Python; and no
message advises what would undo the guarantee.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import userdp
from userdp.core.errors import in_python

SOURCE = Path(userdp.__file__).parent
SAID = ("UseError", "FailureError", "warn", "UserdpWarning", "refuse")


def literals(node: ast.expr) -> Iterator[str]:
    """The texts of an expression; what a format string fills in becomes ``VALUE``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in node.values
        )
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from literals(child)


def messages() -> Iterator[str]:
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in SAID:
                for part in (*node.args, *(one.value for one in node.keywords)):
                    yield from literals(part)


def test_no_message_names_an_option_in_python_but_in_a_command_between_backticks():
    assert sum("--" in text for text in messages()) > 50, "what is looked for is there"
    command = re.compile(r"`[^`]*`")
    left = [text for text in messages() if "--" in command.sub("", in_python(text))]
    unquoted = re.compile(r"\b(userdp|torchrun) [^;]*--")
    bare = [text for text in messages() if unquoted.search(command.sub("", text))]
    assert (left, bare) == ([], [])


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
