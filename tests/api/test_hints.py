"""Errors and warnings speak of options on the command line, and of arguments in Python."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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
