"""Campaigns run seldom: a name that moved must show here, not when one is wanted."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [
    module.name
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(name)
