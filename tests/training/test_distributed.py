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

from tests.speed import fast_then_slow
from tests.training import distributed_jobs as jobs
from tests.training.processes import results_of, run_world, start_world
from tests.training.test_crash import TRAIN
from tests.training.toy import attempts, lines
from userdp.claims import claim
from userdp.core.errors import FailureError, UseError
from userdp.ledger import StoreLedger


class Place:
    """A copy of the store, and a run's folder."""

    def __init__(self, prepared, folder) -> None:
        self.store, self.run, self._folder = folder / "store", folder / "run", folder
        shutil.copytree(prepared, self.store)

    def do(self, size, job, *arguments, fails=False, world="world"):
        """What each of so many processes returns, or raises if it ``fails``."""
        what = size, job, self._folder / world, self.store, self.run, *arguments
        return results_of(start_world(*what), what[2]) if fails else run_world(*what)


@pytest.fixture
def place(prepared, tmp_path):
    return Place(prepared, tmp_path)


@pytest.mark.parametrize(
    ("size", "kind", "lora", "sharded"),
    fast_then_slow(
        [
            (2, "uls", False, True),
            (2, "uls", False, False),
            (2, "els", True, False),
            (2, "els", False, True),
            (4, "uls", True, True),
            (4, "els", False, False),
        ]
    ),
)
def test_any_number_of_processes_gives_the_same_weights(
    place, prepared, tmp_path, size, kind, lora, sharded
):
    other = Place(prepared, tmp_path / "alone")
    alone = jobs.trained(other.store, other.run, kind, lora, False)
    for each in place.do(size, jobs.trained, kind, lora, sharded):
        assert float((each - alone).abs().max()) < 1e-6
    assert float(alone.abs().max()) > 1e-3


# Invariant 5: noise once.


def require_standard_normal(noises: list[torch.Tensor]) -> None:
    """Everybody has the same numbers, each step's and each shard's are independent N(0, 1)."""
    for other in noises[1:]:
        assert torch.equal(noises[0], other), "processes have different noise"
    steps = noises[0].numpy()
    numbers = steps.flatten()
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], len(numbers))
    assert low < (numbers**2).sum() < high, "the variance is not that of the plan"
    assert stats.kstest(numbers, "norm").pvalue > 1e-6
    assert len(np.unique(numbers)) > 0.99 * len(numbers), "noise was used twice"
    assert abs(np.corrcoef(steps)[~np.eye(len(steps), dtype=bool)]).max() < 0.1
    # In which no bits of the sum are left, after float32 too (`tests/gradients/test_lattice.py`).
    assert not (numbers * 2**20 % 1).any(), "noise lies off its grid"


@pytest.mark.parametrize(
    ("size", "sharded"), fast_then_slow([(2, False), (4, True), (4, False), (2, True)])
)
def test_invariant_5_noise_has_the_plans_variance_for_every_number_of_processes(
    place, size, sharded
):
    require_standard_normal(place.do(size, jobs.noises, sharded, None))


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
def test_invariant_5_twin_noise_that_is_not_drawn_once_is_caught(place, broken, sharded, seen):
    with pytest.raises(AssertionError, match=seen):
        require_standard_normal(place.do(2, jobs.noises, sharded, broken))


# Invariant 3: sensitivity.

HOW = [("uls", False), ("els", True), ("els", False), ("uls", True)]


def moved(place, size, kind, sharded, broken=None):
    """How far three users move the sum of all processes, over the clip norm."""
    whole, *others = place.do(size, jobs.sums, kind, sharded, broken)[0]
    clip = jobs.plan_of(kind, l2_clip_norm=0.05).clip.l2_norm
    return [float((whole - other).norm()) / clip for other in others]


@pytest.mark.parametrize(
    ("size", "kind", "sharded"), fast_then_slow((size, *how) for how in HOW for size in (2, 4))
)
def test_invariant_3_a_user_moves_the_sum_of_all_processes_by_at_most_the_bound(
    place, size, kind, sharded
):
    """C for a user (ULS), twice that for both of a user's examples (ELS)."""
    far = moved(place, size, kind, sharded)
    assert far[0] > 0.5
    assert max(far) <= (1 if kind == "uls" else 2)


def test_invariant_3_twin_a_user_that_every_process_counts_is_caught(place):
    assert max(moved(place, 2, "uls", False, "everybody")) > 1


@pytest.mark.parametrize("broken", fast_then_slow(["left out", "own cohort"]))
def test_invariant_2_twin_processes_that_do_not_share_one_cohort_are_caught(place, broken):
    for result in place.do(2, jobs.sums, "uls", False, broken, fails=True):
        assert isinstance(result, FailureError)
        assert "did not draw the same cohort" in str(result)


# Invariant 7: the ledger, whoever is interrupted or dies.


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_invariant_7_one_process_hears_ctrl_c_and_all_stop_after_the_same_step(place, rank):
    (where, taken), other = place.do(2, jobs.interrupted, rank, 3)
    assert other == (where, taken)
    assert where.startswith("after step 3 of ")
    assert taken == attempts(place.run) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "then"), [(1, 4), (0, 1)])
def test_invariant_7_a_dying_process_leaves_a_right_ledger_and_any_number_goes_on(
    place, rank, then
):
    results = place.do(2, jobs.dies, rank, 3, fails=True)
    assert results[rank] is None
    assert isinstance(results[1 - rank], FailureError)
    assert "another process of this run ended" in str(results[1 - rank])
    assert attempts(place.run) == 3
    history = StoreLedger(place.store).history()
    (charge,) = history.charges.values()
    assert (history.is_final(charge), charge.plan.steps) == (False, jobs.STEPS)
    assert place.do(then, jobs.goes_on, world="again") == [jobs.STEPS] * then
    assert attempts(place.run) == jobs.STEPS
    assert lines(place.run / "ledger.jsonl")[-1]["kind"] == "finish"
    assert claim(place.run / "ledger.jsonl").guarantee == jobs.plan_of("uls").guarantee()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["plan", "threads"])
def test_invariant_1_processes_that_differ_are_refused_and_nothing_is_charged(place, what):
    for result in place.do(2, jobs.differs, what, fails=True):
        assert isinstance(result, UseError)
        assert {"plan": "another plan", "threads": "another number of threads"}[what] in str(result)
    assert not place.run.exists()
    assert StoreLedger(place.store).history().charges == {}


@pytest.mark.slow
@pytest.mark.parametrize(("sharded", "lora"), [(True, False), (True, True), (False, False)])
def test_a_whole_run_of_two_processes_releases_what_one_releases(
    place, prepared, tmp_path, sharded, lora
):
    other = Place(prepared, tmp_path / "alone")
    jobs.released(other.store, other.run, False, lora)
    place.do(2, jobs.released, sharded, lora)
    runs = (other.run, place.run)
    alone, together = (load_file(run / "model" / "model.safetensors") for run in runs)
    assert alone.keys() == together.keys()
    assert all(float((alone[name] - together[name]).abs().max()) < 1e-6 for name in alone)
    logs = [lines(run / "operator.jsonl") for run in runs]
    losses = [[line["loss"] for line in log if line["kind"] == "evaluation"] for log in logs]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert len(losses[0]) == 4


@pytest.mark.slow
def test_torchrun_trains_from_the_command_line(place):
    """Started as a user would; one process prints, and the run is whole."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["-m", "userdp", "train", str(place.store), "--out", str(place.run)]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command += ["--steps", "4", *TRAIN, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 4
    assert attempts(place.run) == 4
    assert claim(place.store).complete
    assert (place.run / "model" / "model.safetensors").exists()
    entries = lines(place.run / "operator.jsonl")
    assert len([line for line in entries if line["kind"] == "step"]) == 4
