"""Each privacy invariant has a test that names it and a broken twin, both in `make test`; each
pitfall of the page has a test that bears its number.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
IS_TWIN = re.compile(r"twin|caught|catches|tampered")
PITFALL = re.compile(r"pytest\.mark\.pitfall\(number=(\d+)\)")


def marked_tests(source: str) -> Iterator[tuple[str, list[str]]]:
    """The tests of a module with their marks; a mark of the module is one of each."""
    tree = ast.parse(source)
    marks = [ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, [*marks, *map(ast.unparse, node.decorator_list)]


TESTS = [
    test
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    for test in marked_tests(path.read_text("utf-8"))
]
FAST = [name for name, marks in TESTS if "pytest.mark.slow" not in marks]


@pytest.mark.parametrize("number", range(1, 15))
def test_each_invariant_has_a_test_and_a_broken_twin(number):
    about = [name for name in FAST if re.search(rf"invariant_{number}(_|$)", name)]
    assert any(not IS_TWIN.search(name) for name in about)
    assert any(IS_TWIN.search(name) for name in about)


def test_the_page_lists_every_invariant():
    page = (ROOT / "docs" / "invariants.md").read_text("utf-8")
    assert re.findall(r"^(\d+)\. \*\*", page, re.MULTILINE) == [str(n) for n in range(1, 15)]


def test_each_pitfall_of_the_page_has_a_test_of_its_number():
    page = (ROOT / "docs" / "concepts" / "pitfalls.md").read_text("utf-8")
    caught = {found for _, marks in TESTS for mark in marks for found in PITFALL.findall(mark)}
    assert caught == set(re.findall(r"^\| (\d+) \|", page, re.MULTILINE))
    assert caught == {str(n) for n in range(1, 48)}
