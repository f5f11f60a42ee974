"""A step in which memory runs out: one cohort, one charge, noise once, and the same weights."""

import shutil
from unittest.mock import Mock

import pytest
import torch

from tests.memory import Memory, MemoryLoss
from tests.plans import uls_plan
from tests.training import distributed_jobs as jobs
from tests.training.toy import attempts, weights
from tests.training.worlds import run_world
from userdp.core.errors import FailureError
from userdp.ledger import StoreLedger
from userdp.training.config import UnsafeSeeds
from userdp.training.steps import StepMechanism

PLAN = uls_plan(population=40, cohort_size=4, steps=6)


def run(begin, tmp_path, name, *, micro_batch, most=1 << 30):
    """Train, with memory for passes of so many rows once the run is open.

    Returns:
        What was released and charged; and how often each step halved its passes.
    """
    memory, facts = Memory(), []
    how = {"micro_batch": micro_batch, "exact_log": True, "loss": MemoryLoss(memory)}
    with begin(PLAN, name=name, unsafe_seeds=UnsafeSeeds(draws=1, noise=2), **how) as private:
        memory.most = most
        sampler, noise = private.mechanism.sampler, private.mechanism.noise
        sampler.draw, noise.add_ = Mock(wraps=sampler.draw), Mock(wraps=noise.add_)
        for step in private:
            private._of.optimizer.step()
            facts.append(step.operator)
    counts = sampler.draw.call_count, noise.add_.call_count, attempts(tmp_path / name)
    released = weights(private._of.model).tolist(), counts, [fact["units"] for fact in facts]
    return released, [fact["halvings"] for fact in facts]


def test_invariant_9_a_step_in_which_memory_runs_out_is_the_step_of_smaller_passes(begin, tmp_path):
    """The oracle is a run of passes of one row each, whose memory never ran out."""
    exact, none = run(begin, tmp_path, "exact", micro_batch=1)
    found, halvings = run(begin, tmp_path, "found", micro_batch=8, most=1)
    assert found == exact
    assert exact[1] == (6, 6, 6)
    assert sum(none) == 0
    assert halvings[0] >= 1
    assert sum(halvings[1:]) == 0  # the smaller size is kept


def test_invariant_9_twin_a_retry_with_another_cohort_is_caught(begin, tmp_path, monkeypatch):
    exact, _ = run(begin, tmp_path, "exact", micro_batch=1)
    honest = StepMechanism.take

    def again(self, number):
        if number == 2:
            self.sampler.draw()  # what did not fit is replaced by another cohort
        return honest(self, number)

    monkeypatch.setattr(StepMechanism, "take", again)
    assert run(begin, tmp_path, "found", micro_batch=1)[0] != exact


def test_one_example_that_does_not_fit_is_refused_before_anything_is_charged(
    begin, store, tmp_path
):
    """Whether a step would come to it is for the cohort to say: so it is asked before."""
    memory = Memory(most=0)
    with pytest.raises(FailureError, match="one example of 8 tokens") as error:
        begin(PLAN, loss=MemoryLoss(memory))
    assert "nothing was charged" in error.value.message
    assert not StoreLedger(store.path).charges()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_invariant_9_one_process_that_halves_its_passes_keeps_step_with_the_others(store, tmp_path):
    """Who has room waits; all have the weights of processes that all have room."""
    found = []
    for number, short in enumerate([None, 0, 1]):
        folder = tmp_path / str(number)
        shutil.copytree(store.path, folder / "store")
        job = jobs.trained_where_memory_runs_out
        each = run_world(2, job, folder / "world", folder / "store", folder / "run", short)
        assert attempts(folder / "run") == jobs.STEPS
        for own, halvings in each:
            assert torch.equal(own, each[0][0])
            assert (halvings > 0) == (short is not None)
        found.append(each[0][0])
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=1e-6)
