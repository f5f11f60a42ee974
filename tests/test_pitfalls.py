"""Every pitfall of the page is caught by a test that bears its number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "userdp"
MARK = re.compile(r"pytest\.mark\.pitfall\(number=(\d+)\)")
NUMBERS = range(1, 48)


def caught_by() -> Iterator[tuple[int, str]]:
    """Each number with the name of a test that bears it."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text("utf-8")
        if "mark.pitfall" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for decorator in map(ast.unparse, node.decorator_list):
                    if found := MARK.fullmatch(decorator):
                        yield int(found[1]), node.name


CAUGHT = dict(caught_by())


@pytest.mark.parametrize("number", NUMBERS)
def test_each_pitfall_has_a_test_of_its_number(number: int) -> None:
    assert number in CAUGHT


def test_the_page_lists_every_number_of_a_test() -> None:
    page = (ROOT / "docs" / "concepts" / "pitfalls.md").read_text("utf-8")
    assert {int(n) for n in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == set(NUMBERS)
    assert set(CAUGHT) <= set(NUMBERS)


def strings_said() -> Iterator[str]:
    """Every string of the source that may be shown: all but docstrings."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in docs:
                yield from [node.value] if isinstance(node.value, str) else ()


UNDOES = re.compile(
    r"\b(restore|recover|put back)\b[^.;]*\b(copy|backup)\b|"
    r"\b(delete|remove|edit)\b[^.;,]*\bledger\b",
    re.IGNORECASE,
)


@pytest.mark.pitfall(number=43)
def test_no_message_advises_what_forgets_a_charge() -> None:
    assert [said for said in strings_said() if UNDOES.search(said)] == []


@pytest.mark.parametrize("hint", ["restore it from a copy", "delete the ledger, and retry"])
def test_broken_twin_a_hint_that_undoes_the_guarantee_is_caught(hint: str) -> None:
    assert UNDOES.search(hint)
