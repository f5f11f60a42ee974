"""Ordinary scripts train, or are refused before the charge in words that their author follows."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.ordinary import libraries, own_losses, own_modules
from tests.training.ordinary.script import ALONE, BATCHES, SCRIPTS
from userdp.core.errors import UseError
from userdp.gradients import trainable_parameters
from userdp.ledger import StoreLedger
from userdp.training.private_run import make_private

__all__ = ["libraries", "own_losses", "own_modules"]  # imported for what they register


SCRIPTS_BY_THIRDS = [name for first in range(3) for name in [*SCRIPTS][first::3]]


def test_there_are_forty_and_more():
    assert len(SCRIPTS) >= 40


@pytest.mark.parametrize("name", fast_then_slow(SCRIPTS_BY_THIRDS, fast=len(SCRIPTS) // 4))
def test_a_script(name, store, tmp_path):
    make, expected = SCRIPTS[name]
    torch.manual_seed(0)
    script = make(store.meta.vocab_size)
    model = script.model.train()
    optimizer = script.optimizer(model)
    before = {n: p.detach().clone() for n, p in trainable_parameters(model).items()}

    def trained() -> int:
        steps = 0
        with make_private(
            model, optimizer, store, uls_plan(steps=2), out=tmp_path / "run", loss=script.loss
        ) as private:
            for _ in private:
                optimizer.step()
                script.after_step()
                steps += 1
            private.save()
        return steps

    if expected not in (BATCHES, ALONE):
        with pytest.raises((UseError, RuntimeError, ValueError), match=expected):
            trained()
        assert StoreLedger(store.path).history().charges == {}
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert trained() == 2
    said = [str(one.message) for one in caught if "cannot share a pass" in str(one.message)]
    assert len(said) == (expected == ALONE), "said once, before anything is charged"
    moved = [n for n, p in trainable_parameters(model).items() if not torch.equal(p, before[n])]
    assert moved == list(before)
