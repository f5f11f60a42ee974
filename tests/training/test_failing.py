"""A run in which somebody's examples raise an error has the steps of its plan."""

import json

import pytest

from tests.plans import uls_plan
from tests.training.toy import attempts, cycles, private_run, sgd, toy_model, toy_store
from tests.words import WORDS
from userdp.gradients import causal_lm_loss
from userdp.gradients.engines import reference
from userdp.training.config import UnsafeSeeds

STEPS = 4
ANN = {b"ann": [" ".join([WORDS[5]] * 6)]}


def updates(folder, *, ann):
    """Of a loop that goes on whatever a step raises; and how many users counted as zero in it."""
    store = toy_store(folder, cycles(10) | (ANN if ann else {}), held_out=0)
    word = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"][WORDS[5]]

    def parses(model, input_ids, lengths, targets=None):
        """A loss that cannot take one word four times in a row."""
        if int((input_ids == word).sum(1).amax()) >= 4:
            raise ValueError("cannot parse 'Dear Bob'")
        return causal_lm_loss(model, input_ids, lengths, targets)

    model, plan = toy_model(store), uls_plan(population=10, cohort_size=8, steps=STEPS)
    optimizer, failed = sgd(model), []
    how = {"exact_log": True, "unsafe_seeds": UnsafeSeeds(draws=1), "engine": "reference"}
    run = private_run(model, optimizer, store, plan, out=folder / "run", loss=parses, **how)
    with run as private:
        while private.remaining:
            try:
                for step in private:
                    optimizer.step()
                    failed.append(step.operator["failed"])
            except Exception:  # the loop that the attack is about
                continue
        private.save()
    assert attempts(folder / "run") == STEPS
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return len(failed), sum(failed)


@pytest.mark.pitfall(number=47)
def test_invariant_9_every_step_has_its_update_whoever_is_drawn(tmp_path):
    count, failed = updates(tmp_path / "with", ann=True)
    assert count == STEPS
    assert 1 <= failed <= STEPS
    assert updates(tmp_path / "without", ann=False) == (STEPS, 0)
    told = (tmp_path / "with" / "run" / "ledger.jsonl").read_text()
    assert "failed" not in told  # it is the operator's


def test_invariant_9_twin_an_error_that_leaves_the_engine_costs_an_update(tmp_path, monkeypatch):
    def raised(task, total, unit, error):
        raise error

    monkeypatch.setattr(reference, "count_failed", raised)
    assert updates(tmp_path / "with", ann=True)[0] < STEPS
