"""The checks of several processes, whole and sharded; and what they see."""

from __future__ import annotations

import re

import pytest

from tests.speed import fast_then_slow
from tests.training.checks import jobs
from tests.training.worlds import run_world

HONEST = [
    {"sharded": True},
    {},
    {"lora": True, "sharded": True},
    {"lora": True},
    {"sharded": True, "unsafe_noise_seed": 6},
]


@pytest.mark.parametrize("options", fast_then_slow(HONEST), ids=str)
def test_honest_processes_pass(prepared, tmp_path, options):
    (told, weights, same), (others_told, others, other_same) = run_world(
        2, jobs.asked, tmp_path, prepared, None, options
    )
    assert told == others_told == []
    assert weights == others
    assert same
    assert other_same


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
def test_a_fault_of_one_process_is_seen_by_all(prepared, tmp_path, fault, sharded, number, says):
    options = {"sharded": True} if sharded else {}
    for told, _, _ in run_world(2, jobs.asked, tmp_path, prepared, fault, options):
        assert any(
            one.startswith(f"invariant {number} ") and re.search(says, one) for one in told
        ), told
