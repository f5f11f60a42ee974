"""Several processes train one model: the same weights, the same guarantee, and a right ledger."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats

from benchmarks.gpu.lattice import candidates, lattice_gain
from tests.speed import fast_then_slow
from tests.training import distributed_jobs as jobs
from tests.training.test_crash import TRAIN
from tests.training.toy import attempts, lines
from tests.training.worlds import results_of, run_world, start_world
from userdp.claims import claim
from userdp.core.errors import FailureError, UseError
from userdp.ledger import StoreLedger

OK = "done"


@pytest.fixture(scope="module")
def copy(prepared, tmp_path_factory):
    """A fresh copy of the store, and a place for a run."""

    def make():
        folder = tmp_path_factory.mktemp("distributed")
        shutil.copytree(prepared, folder / "store")
        return folder / "store", folder / "run", folder / "world"

    return make


def require_same_weights(copy, cases) -> None:
    """The weights of each case after 20 steps under test seeds are those of one process alone."""
    for size in sorted({size for size, *_ in cases}):
        here = [tuple(case) for number, *case in cases if number == size]
        work = [(*copy()[:2], *case) for case in here]
        everybody = run_world(size, jobs.all_trained, copy()[2], work)
        for case, *each in zip(here, *everybody, strict=True):
            kind, lora, _ = case
            alone = jobs.trained(*copy()[:2], kind, lora, False)
            for one in each:
                assert float((one - alone).abs().max()) < 1e-6, (size, case)
            assert float(alone.abs().max()) > 1e-3


FIRST = (2, "uls", False, True)
OTHERS = [
    (2, "uls", False, False),
    (2, "els", True, False),
    (2, "els", False, True),
    (4, "uls", True, True),
    (4, "els", False, False),
]


@pytest.mark.parametrize(
    "cases", fast_then_slow([[FIRST], OTHERS]), ids=["two, sharded", "two and four"]
)
def test_any_number_of_processes_gives_the_same_weights(copy, cases):
    require_same_weights(copy, cases)


# Invariant 5: noise once.


def require_standard_normal(noises: list[torch.Tensor]) -> None:
    """Everybody has the same numbers, each step's and each shard's are independent N(0, 1)."""
    for other in noises[1:]:
        assert torch.equal(noises[0], other), "processes have different noise"
    steps = noises[0]
    numbers = steps.flatten().numpy()
    spread = (numbers**2).sum()
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], len(numbers))
    assert low < spread < high, "the variance is not that of the plan"
    assert stats.kstest(numbers, "norm").pvalue > 1e-6
    assert len(np.unique(numbers)) > 0.99 * len(numbers), "noise was used twice"
    assert abs(np.corrcoef(steps.numpy())[~np.eye(len(steps), dtype=bool)]).max() < 0.1


@pytest.mark.parametrize(
    ("size", "sharded"), fast_then_slow([(2, False), (4, True), (4, False), (2, True)])
)
def test_invariant_5_noise_has_the_plans_variance_for_every_number_of_processes(
    copy, size, sharded
):
    store, run, world = copy()
    require_standard_normal(run_world(size, jobs.noises, world, store, run, sharded, None))


@pytest.mark.parametrize(
    ("broken", "sharded", "seen"),
    fast_then_slow(
        [
            ("noise on every process", False, "variance"),
            ("each its own", False, "different noise"),
            ("one seed for all shards", True, "used twice"),
        ]
    ),
)
def test_invariant_5_twin_noise_that_is_not_drawn_once_is_caught(copy, broken, sharded, seen):
    store, run, world = copy()
    noises = run_world(2, jobs.noises, world, store, run, sharded, broken)
    with pytest.raises(AssertionError, match=seen):
        require_standard_normal(noises)


def test_invariant_5_noise_of_several_processes_tells_nothing_by_its_lattice(tmp_path):
    """`benchmarks.gpu.lattice`: within 4 standard errors; the twins in float32 are far beyond."""
    numbers, std = 200_000, 13.37
    job = jobs.lattice_releases
    first, second = run_world(2, job, tmp_path / "world", tmp_path, tmp_path, std, numbers)
    for name, release in first.items():
        if "whole" in name:
            assert torch.equal(release, second[name])
        else:
            assert len(release) < numbers
            release = torch.cat([release, second[name]])
        truth, other = candidates(numbers)
        gain = lattice_gain(release.numpy(), truth=truth, other=other, std=std)
        assert (gain.errors > 12) if "float32" in name else (abs(gain.errors) < 4), (name, gain)


# Invariant 3: sensitivity.


def require_bounded(found: list[torch.Tensor], bound: float) -> None:
    whole, *others = found
    for other in others:
        assert float((whole - other).norm()) <= bound, "one user moves the sum too far"


HOW = [("uls", False), ("els", True), ("els", False), ("uls", True)]


@pytest.mark.parametrize(
    ("size", "kind", "sharded"), fast_then_slow((size, *how) for how in HOW for size in (2, 4))
)
def test_invariant_3_a_user_moves_the_sum_of_all_processes_by_at_most_the_bound(
    copy, size, kind, sharded
):
    """C for a user (ULS), twice that for both of a user's examples (ELS)."""
    store, run, world = copy()
    found = run_world(size, jobs.sums, world, store, run, kind, sharded, None)[0]
    clip = jobs.plan_of(kind, l2_clip_norm=0.05).clip.l2_norm
    require_bounded(found, clip if kind == "uls" else 2 * clip)
    assert float((found[0] - found[1]).norm()) > 0.5 * clip


def test_invariant_3_twin_a_user_that_every_process_counts_is_caught(copy):
    store, run, world = copy()
    found = run_world(2, jobs.sums, world, store, run, "uls", False, "everybody")[0]
    with pytest.raises(AssertionError, match="too far"):
        require_bounded(found, 0.05)


@pytest.mark.parametrize("broken", fast_then_slow(["left out", "own cohort"]))
def test_invariant_2_twin_processes_that_do_not_share_one_cohort_are_caught(copy, broken):
    store, run, world = copy()
    processes = start_world(2, jobs.sums, world, store, run, "uls", False, broken)
    for result in results_of(processes, world):
        assert isinstance(result, FailureError)
        assert "did not draw the same cohort" in str(result)


# Invariant 7: the ledger, whoever is interrupted or dies.


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_invariant_7_one_process_hears_ctrl_c_and_all_stop_after_the_same_step(copy, rank):
    store, run, world = copy()
    stopped = run_world(2, jobs.interrupted, world, store, run, rank, 3)
    (place, taken), other = stopped
    assert other == (place, taken)
    assert place.startswith("after step 3 of ")
    assert taken == attempts(run) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "size", "then"), [(1, 2, 4), (0, 2, 1)])
def test_invariant_7_a_dying_process_leaves_a_right_ledger_and_any_number_goes_on(
    copy, rank, size, then
):
    store, run, world = copy()
    processes = start_world(size, jobs.dies, world, store, run, rank, 3)
    results = results_of(processes, world)
    assert results[rank] is None
    assert isinstance(results[1 - rank], FailureError)
    assert "another process of this run ended" in str(results[1 - rank])
    assert attempts(run) == 3
    (charge,) = StoreLedger(store).charges()
    assert not charge.settled
    assert charge.steps == jobs.STEPS
    again = run_world(then, jobs.goes_on, world.with_name("again"), store, run)
    assert again == [jobs.STEPS] * then
    assert attempts(run) == jobs.STEPS
    assert lines(run / "ledger.jsonl")[-1]["kind"] == "finish"
    assert claim(run / "ledger.jsonl").guarantee == jobs.plan_of("uls").guarantee()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["plan", "threads"])
def test_invariant_1_processes_that_differ_are_refused_and_nothing_is_charged(copy, what):
    store, run, world = copy()
    for result in results_of(start_world(2, jobs.differs, world, store, run, what), world):
        assert isinstance(result, UseError)
        assert {"plan": "another plan", "threads": "another number of threads"}[what] in str(result)
    assert not run.exists()
    assert StoreLedger(store).charges() == []


@pytest.mark.slow
@pytest.mark.parametrize(("sharded", "lora"), [(True, False), (True, True), (False, False)])
def test_a_whole_run_of_two_processes_releases_what_one_releases(copy, sharded, lora):
    store, run, _ = copy()
    jobs.released(store, run, False, None, lora)
    store, other_run, world = copy()
    assert run_world(2, jobs.released, world, store, other_run, sharded, None, lora) == [OK] * 2
    paths = [path / "model" / "model.safetensors" for path in (run, other_run)]
    alone, together = map(load_file, paths)
    assert alone.keys() == together.keys()
    assert all(float((alone[name] - together[name]).abs().max()) < 1e-6 for name in alone)
    losses = [
        [line["loss"] for line in lines(path / "operator.jsonl") if line["kind"] == "evaluation"]
        for path in (run, other_run)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(losses[0]) == 4


@pytest.mark.slow
def test_torchrun_trains_from_the_command_line(copy):
    """Started as a user would; one process prints, and the run is whole."""
    store, run, _ = copy()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            *[*command, "-m", "userdp", "train", str(store), "--out", str(run)],
            *["--steps", "4", *TRAIN, "--json"],
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4
    assert attempts(run) == 4
    assert claim(store).complete
    assert (run / "model" / "model.safetensors").exists()
    assert len([line for line in lines(run / "operator.jsonl") if line["kind"] == "step"]) == 4


# Dealing users out.
