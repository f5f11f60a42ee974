"""A step in which memory runs out: one cohort, one charge, noise once, and the same weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.memory import Memory, MemoryLoss
from tests.plans import uls_plan
from tests.training import distributed_jobs as jobs
from tests.training.toy import attempts, private_run, sgd, toy_model, toy_store, weights
from tests.training.worlds import run_world
from userdp.core.errors import FailureError
from userdp.data.store import UserStore
from userdp.gradients import ClippedSum, Units
from userdp.ledger import StoreLedger
from userdp.training.config import UnsafeSeeds
from userdp.training.steps import StepMechanism

STEPS = 6
SEEDS = {"unsafe_seeds": UnsafeSeeds(draws=1, noise=2)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> UserStore:
    return toy_store(tmp_path_factory.mktemp("room"))


@dataclass
class Run:
    """What a run did: its weights, what it drew and added, what its operator was told."""

    weights: torch.Tensor
    draws: int
    noises: int
    charged: int
    facts: list[dict[str, Any]]

    def is_that_of(self, other: Run) -> bool:
        """Whether nobody can tell the two apart by what was released and charged."""
        counts = (self.draws, self.noises, self.charged) == (STEPS, STEPS, STEPS)
        units = [fact["units"] for fact in self.facts] == [fact["units"] for fact in other.facts]
        return counts and units and torch.equal(self.weights, other.weights)


def run(
    store: UserStore, out: Path, patch: pytest.MonkeyPatch, *, micro_batch: int, most: int = 1 << 30
) -> Run:
    """Train, with memory for passes of so many rows once the run is open."""
    counts = {"draw": 0, "add_": 0}

    def counted(home: object, name: str) -> None:
        right = getattr(home, name)

        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return right(*arguments)

        patch.setattr(home, name, call)

    model, memory = toy_model(store).train(), Memory()
    optimizer = sgd(model)
    facts = []
    with private_run(
        model, optimizer, store, uls_plan(population=40, cohort_size=4, steps=STEPS),
        out=out, loss=MemoryLoss(memory), micro_batch=micro_batch, exact_log=True, **SEEDS,
    ) as private:  # fmt: skip
        memory.most = most
        counted(private.mechanism.sampler, "draw")
        counted(private.mechanism.noise, "add_")
        for step in private:
            optimizer.step()
            facts.append(step.operator)
    return Run(weights(model), counts["draw"], counts["add_"], attempts(out), facts)


def test_invariant_9_a_step_in_which_memory_runs_out_is_the_step_of_smaller_passes(
    store: UserStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is a run of passes of one row each, whose memory never ran out."""
    exact = run(store, tmp_path / "exact", monkeypatch, micro_batch=1)
    found = run(store, tmp_path / "found", monkeypatch, micro_batch=8, most=1)
    assert found.is_that_of(exact)
    assert sum(fact["halvings"] for fact in exact.facts) == 0
    assert found.facts[0]["halvings"] >= 1
    assert sum(fact["halvings"] for fact in found.facts[1:]) == 0  # the smaller size is kept


def draws_again(
    mechanism: StepMechanism, units: Units, right: Callable[[Units], ClippedSum]
) -> ClippedSum:
    """A broken twin: what did not fit is replaced by another cohort."""
    try:
        return right(units)
    except FailureError:
        return right(mechanism.collator(mechanism.sampler.draw()))


def test_invariant_9_twin_a_retry_with_another_cohort_is_caught(
    store: UserStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = run(store, tmp_path / "exact", monkeypatch, micro_batch=1)
    honest, calls = StepMechanism.take, []

    def take(self: StepMechanism, number: int) -> dict[str, Any]:
        def engine(model: Any, loss: Any, units: Units, **options: Any) -> ClippedSum:
            def once(units: Units) -> ClippedSum:
                calls.append(units)
                if len(calls) == 2:
                    raise FailureError("memory ran out")
                return right(model, loss, units, **options)

            return draws_again(self, units, once)

        right = self.engine
        with monkeypatch.context() as patch:
            patch.setattr(self, "engine", engine)
            return honest(self, number)

    monkeypatch.setattr(StepMechanism, "take", take)
    assert not run(store, tmp_path / "found", monkeypatch, micro_batch=1).is_that_of(exact)


def test_one_example_that_does_not_fit_is_refused_before_anything_is_charged(
    store: UserStore, tmp_path: Path
) -> None:
    """Whether a step would come to it is for the cohort to say: so it is asked before."""
    before = len(StoreLedger(store.path).charges())
    model, memory = toy_model(store).train(), Memory(most=0)
    plan = uls_plan(population=40, cohort_size=4, steps=STEPS)
    with pytest.raises(FailureError, match="one example of 8 tokens") as error:
        private_run(
            model, sgd(model), store, plan, out=tmp_path / "run", loss=MemoryLoss(memory), **SEEDS
        )
    assert "nothing was charged" in error.value.message
    assert len(StoreLedger(store.path).charges()) == before
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_invariant_9_one_process_that_halves_its_passes_keeps_step_with_the_others(
    store: UserStore, tmp_path: Path
) -> None:
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
