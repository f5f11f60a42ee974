"""The list of planted faults fits the source, and the runner tells a kill from a survivor."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import shutil
from typing import Any

import pytest

import benchmarks
from benchmarks.faults.__main__ import ROOT, planted, read_faults, verdict

FAULTS = read_faults()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault["name"])
def test_a_fault_fits_the_source_and_names_tests_that_exist(fault: dict[str, Any]) -> None:
    ast.parse(planted(fault))  # raises unless the old text is there exactly once
    assert fault["new"] != fault["old"]
    assert fault["tests"]
    for test in fault["tests"]:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file()
        assert f"def {name}" in (ROOT / path).read_text("utf-8") if name else True


def test_there_are_sixty_faults_of_all_invariants() -> None:
    assert len(FAULTS) >= 60
    assert {fault["invariant"] for fault in FAULTS.values()} == set(range(1, 15))


@pytest.mark.slow
def test_the_runner_tells_a_kill_from_all_else(tmp_path) -> None:
    old = "Context(prec=400, rounding=ROUND_CEILING)"
    fault = {"name": "one", "file": "core/vocabulary.py", "tests": ["tests/test_vocabulary.py"]}
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for new, told in (
        ("Context(prec=400)", "killed by"),
        (old.replace("400, ", "400,  "), "survived"),
    ):
        assert verdict({**fault, "old": old, "new": new}, tmp_path / "src").startswith(told)
    broken = {**fault, "old": "from enum import StrEnum\n", "new": "import nobody\n"}
    assert verdict(broken, tmp_path / "src").startswith("error")
    place = tmp_path / "src/userdp/core/vocabulary.py"
    assert place.read_bytes() == (ROOT / "src/userdp/core/vocabulary.py").read_bytes()


def test_every_benchmark_can_be_imported() -> None:
    """Campaigns run seldom: a name that moved must show here, not when one is wanted."""
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
