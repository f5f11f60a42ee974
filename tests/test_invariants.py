"""Every privacy invariant has a test that names it and a broken twin, both in `make test`."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def fast_names(source: str) -> list[str]:
    """The tests of a module that `make test` runs: those that are not marked slow as a whole."""
    tree = ast.parse(source)
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    if any(ast.unparse(value) == "pytest.mark.slow" for value in marks):
        return []
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and "pytest.mark.slow" not in map(ast.unparse, node.decorator_list)
    ]


NAMES = [
    name
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    for name in fast_names(path.read_text("utf-8"))
]
IS_TWIN = re.compile(r"twin|caught|catches|tampered")


@pytest.mark.parametrize("number", range(1, 15))
def test_each_invariant_has_a_test_and_a_broken_twin(number):
    about = [name for name in NAMES if re.search(rf"invariant_{number}(_|$)", name)]
    assert any(not IS_TWIN.search(name) for name in about)
    assert any(IS_TWIN.search(name) for name in about)


def test_twin_tests_that_are_all_slow_are_not_counted():
    slow = "@pytest.mark.slow\ndef test_invariant_1_it_holds(): ...\n"
    assert fast_names(slow + "def test_invariant_1_twin_is_caught(): ...") == [
        "test_invariant_1_twin_is_caught"
    ]
    assert fast_names("pytestmark = pytest.mark.slow\ndef test_invariant_1_it_holds(): ...") == []


def test_the_page_lists_every_invariant():
    page = (ROOT / "docs" / "invariants.md").read_text("utf-8")
    assert re.findall(r"^(\d+)\. \*\*", page, re.MULTILINE) == [str(n) for n in range(1, 15)]
