"""Invariant 14, end to end: masks of a private step are secret, and the caller's streams run on."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.plans import els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG
from userdp.training.causal_models import new_model
from userdp.training.config import UnsafeSeeds


def with_dropout(store):
    shape = {"vocab_size": store.meta.vocab_size, "seq_len": store.meta.seq_len}
    return new_model(replace(CONFIG, dropout=0.5), **shape).train()


def seed_all():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("make_plan", fast_then_slow([uls_plan, els_plan]))
@pytest.mark.pitfall(number=31)
def test_after_a_public_seed_masks_are_not_what_the_seed_gives(
    begin, store, monkeypatch, engine, make_plan
):
    """Two runs with equal cohorts after equal seeds: no mask comes twice, in a run or across."""
    masks, seen = [], []

    def forward(self, x):
        kept = F.dropout(torch.ones_like(x), self.p, self.training)
        if self.training and kept.numel() > 64:  # else it is asked about made-up rows
            masks.append((kept > 0).numpy().tobytes())
        return x * kept

    monkeypatch.setattr(nn.Dropout, "forward", forward)
    how = {"plan": make_plan(steps=3), "engine": engine, "unsafe_seeds": UnsafeSeeds(draws=3)}
    for name in ("one", "other"):
        seed_all()
        with begin(model=with_dropout(store), name=name, **how) as private:
            for step in private:
                if step.number > 1:  # the first one tries the model out on a few rows
                    seen.append([*masks])
                private._of.optimizer.step()
                masks.clear()
                seed_all()
    everything = [mask for step in seen for mask in step]
    assert min(map(len, seen)) >= 2
    assert len(set(everything)) == len(everything)
