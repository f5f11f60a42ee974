"""A command line, run in this process, and a small world that it is run in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plans import uls_plan
from tests.training.conftest import prepared, store
from tests.training.toy import CONFIG, toy_store
from userdp.cli.app import run
from userdp.training.loop import train

__all__ = ["prepared", "store"]

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def userdp(capsys) -> Told:
    """Runs the words of a line; what was printed is in one line of words each."""

    def told(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run([*map(str, words)])
        return status, *(" ".join(text.split()) for text in capsys.readouterr())

    return told


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, a finished run on it, and the plan of that run."""
    folder = tmp_path_factory.mktemp("world")
    plan = uls_plan(population=100, cohort_size=8, group_size=2, steps=1, l2_clip_norm=1.0)
    plan.save(folder / "plan.json")
    train(toy_store(folder), plan, CONFIG, out=folder / "run")
    return folder


@pytest.fixture
def place(world: Path, tmp_path: Path) -> Path:
    """A copy of the world, to change."""
    return shutil.copytree(world, tmp_path / "place")
