"""Several processes with an accelerator each: the weights of one CPU, whole and sharded.

Sums, noise, weights and what all agree on go through the collectives of a device; of a sharded
model (FSDP2) its parts, what is gathered of them, their gradients and their noise lie there. The
devices are `tests.gradients.far_device`'s.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.training import far_jobs as jobs
from tests.training.worlds import results_of, run_world, start_world
from userdp.claims.exported import verify_export
from userdp.commands.export import export
from userdp.ledger import RunFolder, StoreLedger


@pytest.fixture
def copy(prepared, tmp_path):
    """``copy(name)``: a fresh copy of the store, and places for a run and a world."""

    def make(name):
        shutil.copytree(prepared, tmp_path / name / "store")
        return [tmp_path / name / part for part in ("store", "run", "world")]

    return make


CASES = [(False, True), (False, False), (True, True), (True, False)]
WAYS = pytest.mark.parametrize(
    ("lora", "sharded"), CASES, ids=["sharded", "whole", "adapters, sharded", "adapters"]
)


def require_weights_of_one_cpu(copy, job, lora, sharded) -> None:
    store, run, world = copy("one")
    ((alone, _),) = run_world(1, jobs.trained, world, store, run, lora, sharded, False)
    store, run, world = copy("two")
    for weights, products in run_world(2, job, world, store, run, lora, sharded, False):
        assert products > 0, "it did not compute there"
        np.testing.assert_allclose(weights, alone, atol=1e-4)
    assert len(StoreLedger(store).charges()) == 1


@pytest.mark.slow
@WAYS
def test_processes_with_an_accelerator_each_give_the_weights_of_one_cpu(copy, lora, sharded):
    require_weights_of_one_cpu(copy, jobs.trained, lora, sharded)


@pytest.mark.slow
@WAYS
def test_a_run_that_breaks_off_goes_on_there_and_what_it_released_may_leave(copy, lora, sharded):
    store, run, world = copy("two")
    run_world(2, jobs.saved, world, store, run, lora, sharded)
    exported = export(run, out=run.parent / "leaves")
    assert not verify_export(exported.path).problems
    assert RunFolder(run).adapter.is_dir() == lora
    assert exported.claim.finite


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "whole"])
def test_twin_a_sum_that_is_left_on_the_host_is_noticed(copy, sharded):
    store, run, world = copy("two")
    ended = results_of(start_world(2, jobs.trained, world, store, run, False, sharded, True), world)
    # Of a whole model PyTorch refuses a gradient that lies elsewhere than its weight.
    assert all(isinstance(one, RuntimeError) for one in ended), ended
