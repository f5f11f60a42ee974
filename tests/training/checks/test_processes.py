"""The self-check of several processes, whole and sharded; and what it refuses."""

from __future__ import annotations

import re
import shutil

import pytest

from tests.speed import fast_then_slow
from tests.training.checks import jobs
from tests.training.worlds import results_of, run_world, start_world
from userdp.errors import FailureError
from userdp.ledger import StoreLedger

pytestmark = pytest.mark.self_check


@pytest.fixture
def folders(prepared, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(prepared, tmp_path / "store")
    return tmp_path / "store", tmp_path / "run", tmp_path / "world"


HONEST = [
    {"sharded": True},
    {},
    {"lora": True, "sharded": True},
    {"lora": True},
    {"sharded": True, "unsafe_seed": 5, "unsafe_noise_seed": 6},
]


@pytest.mark.parametrize("options", fast_then_slow(HONEST), ids=str)
def test_honest_processes_pass_and_agree_that_they_do(folders, options):
    store, run, world = folders
    (told, weights, same), (_, others, other_same) = run_world(
        2, jobs.opens, world, store, run, None, options
    )
    assert told.startswith("passed before the first charge: invariants 2, 3, 5")
    assert weights == others
    assert same
    assert other_same
    assert len(StoreLedger(store).charges()) == 1


CAUGHT = [
    ("one process's noise doubled", True, 5, "deviation"),
    ("one process without noise", True, 5, "deviation"),
    ("one process's noise halved", False, 5, "deviation"),
    ("one process hands out zeros", False, 5, "sum of all"),
    ("numbers between the shares of two processes", False, 5, "in no process's share"),
    ("numbers of each share without noise", False, 5, "no noise in any"),
    ("noise of every process in the sum", False, 5, "noises? its? sum|from one process's"),
    ("every process adds its own noise", False, 5, "noisy sum differs"),
    ("one seed for all parts", True, 5, "share noise"),
    ("one process has other weights", False, 5, "parameters that differ between processes"),
    ("every process clips all units", False, 5, "clip one cohort between them"),
    ("every process draws its own cohort", False, 2, "drew other cohorts"),
    ("the other processes' sums are lost", False, 5, "sum of all processes"),
    ("cohorts from a public seed", False, 2, "repeats the cohorts"),
]
"""Fault, whether the model is sharded, the invariant that is named, and the words."""


@pytest.mark.parametrize(
    ("fault", "sharded", "number", "says"), fast_then_slow(CAUGHT), ids=[case[0] for case in CAUGHT]
)
def test_a_fault_of_one_process_is_refused_on_all_before_the_charge(
    folders, fault, sharded, number, says
):
    store, run, world = folders
    options = {"sharded": True} if sharded else {}
    processes = start_world(2, jobs.opens, world, store, run, fault, options)
    for result in results_of(processes, world):
        assert isinstance(result, FailureError), result
        assert "self-check" in str(result)
        assert f"invariant {number} " in str(result)
        assert re.search(says, str(result)), str(result)
    assert StoreLedger(store).charges() == []
    assert not run.exists()
