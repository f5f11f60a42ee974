"""Every privacy invariant has a test that names it, and a broken twin that is caught."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = [
    name
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"^\s*def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
]
IS_TWIN = re.compile(r"twin|caught|catches|tampered|refused|refuses")


@pytest.mark.parametrize("number", range(1, 12))
def test_each_invariant_has_a_test_and_a_broken_twin(number):
    about = [name for name in NAMES if re.search(rf"invariant_{number}(_|$)", name)]
    assert any(not IS_TWIN.search(name) for name in about)
    assert any(IS_TWIN.search(name) for name in about)


def test_the_page_lists_every_invariant():
    page = (ROOT / "docs" / "invariants.md").read_text("utf-8")
    assert re.findall(r"^(\d+)\. \*\*", page, re.MULTILINE) == [str(n) for n in range(1, 12)]
