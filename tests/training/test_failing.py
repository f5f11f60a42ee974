"""A run in which somebody's examples raise an error has the steps of its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from torch import Tensor, nn

from tests.plans import uls_plan
from tests.training.toy import attempts, cycles, private_run, sgd, toy_model, toy_store
from tests.words import WORDS
from userdp.data.store import UserStore
from userdp.gradients import ClippedSum, causal_lm_loss
from userdp.gradients.engines import reference
from userdp.gradients.engines.task import Task
from userdp.training.config import UnsafeSeeds

STEPS = 4
ANN = {b"ann": [" ".join([WORDS[5]] * 6)]}


def store_of(folder: Path, *, ann: bool) -> UserStore:
    return toy_store(folder, cycles(10) | (ANN if ann else {}), held_out=0)


class Parses:
    """A loss that cannot take one word four times in a row."""

    def __init__(self, folder: Path) -> None:
        vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        self._word = int(vocabulary[WORDS[5]])

    def __call__(
        self, model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        if int((input_ids == self._word).sum(1).amax()) >= 4:
            raise ValueError("cannot parse 'Dear Bob'")
        return causal_lm_loss(model, input_ids, lengths, targets)


def updates(folder: Path, *, ann: bool) -> tuple[int, int]:
    """Of a loop that goes on whatever a step raises; and how many users counted as zero in it."""
    store = store_of(folder, ann=ann)
    model, count, failed = toy_model(store).train(), 0, 0
    optimizer = sgd(model)
    plan = uls_plan(population=10, cohort_size=8, steps=STEPS)
    with private_run(
        model,
        optimizer,
        store,
        plan,
        out=folder / "run",
        loss=Parses(folder),
        exact_log=True,
        unsafe_seeds=UnsafeSeeds(draws=1),
        engine="reference",
    ) as private:
        while True:
            try:
                for step in private:
                    optimizer.step()
                    count += 1
                    failed += step.operator["failed"]
                break
            except Exception:  # the loop that the attack is about
                continue
        private.save()
    assert attempts(folder / "run") == STEPS
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return count, failed


@pytest.mark.pitfall(number=47)
def test_invariant_9_every_step_has_its_update_whoever_is_drawn(tmp_path: Path) -> None:
    count, failed = updates(tmp_path / "with", ann=True)
    assert count == STEPS
    assert 1 <= failed <= STEPS
    assert updates(tmp_path / "without", ann=False) == (STEPS, 0)
    told = (tmp_path / "with" / "run" / "ledger.jsonl").read_text()
    assert "failed" not in told  # it is the operator's


def test_invariant_9_twin_an_error_that_leaves_the_engine_costs_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raised(task: Task, total: ClippedSum, unit: int, error: Exception) -> NoReturn:
        raise error

    monkeypatch.setattr(reference, "count_failed", raised)
    assert updates(tmp_path / "without", ann=False) == (STEPS, 0)
    assert updates(tmp_path / "with", ann=True)[0] < STEPS
