"""Invariant 14, end to end: masks of a private step are secret, and the caller's streams run on."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.plans import els_plan, uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, private_run, sgd
from userdp.core.errors import UseError
from userdp.training.config import UnsafeSeeds
from userdp.training.models import new_model
from userdp.training.private import make_private


def model_with_dropout(store, rate=0.5):
    config = replace(CONFIG, dropout=rate)
    model = new_model(config, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    return model.train()


@pytest.fixture
def masks(monkeypatch):
    """Every mask of a dropout layer that is drawn, as it comes."""
    seen: list[Tensor] = []

    def forward(self, x):
        kept = F.dropout(torch.ones_like(x), self.p, self.training)
        if self.training:  # else it is asked about made-up rows
            seen.append(kept.detach().clone())
        return x * kept

    monkeypatch.setattr(nn.Dropout, "forward", forward)
    return seen


def seed_all(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def as_bytes(masks):
    return [(mask > 0).numpy().tobytes() for mask in masks if mask.numel() > 64]


@pytest.mark.parametrize("engine", ["auto", "reference"])
@pytest.mark.parametrize("make_plan", fast_then_slow([uls_plan, els_plan]))
@pytest.mark.pitfall(number=31)
def test_after_a_public_seed_masks_are_not_what_the_seed_gives(
    store, tmp_path, masks, engine, make_plan
):
    """Two runs with equal cohorts after equal seeds: no mask comes twice, in a run or across."""
    seen = []
    for number in range(2):
        model = model_with_dropout(store)
        optimizer, out = sgd(model), tmp_path / f"run{number}"
        seed_all(0)
        with private_run(
            model,
            optimizer,
            store,
            make_plan(steps=3),
            out=out,
            engine=engine,
            unsafe_seeds=UnsafeSeeds(draws=3),
        ) as private:
            for step in private:
                if step.number > 1:  # the first one tries the model out on a few rows
                    seen.append(as_bytes(masks))
                optimizer.step()
                masks.clear()
                seed_all(0)
    everything = [mask for step in seen for mask in step]
    assert min(map(len, seen)) >= 2
    assert len(set(everything)) == len(everything)


def test_the_callers_random_numbers_are_as_if_no_step_had_happened(store, tmp_path):
    def drawn():
        normal = np.random.normal(), random.gauss(0, 1), torch.randn(3).tolist()
        return [torch.rand(3).tolist(), np.random.random(3).tolist(), random.random(), normal]

    model = model_with_dropout(store)
    optimizer = sgd(model)
    seed_all(0)
    expected = [drawn(), drawn(), drawn(), drawn()]
    with make_private(model, optimizer, store, uls_plan(steps=3), out=tmp_path / "run") as private:
        seed_all(0)
        seen = [drawn()]
        for _ in private:
            seen.append(drawn())
            optimizer.step()
    assert seen == expected


def test_a_generator_of_the_models_own_is_refused_before_anything_is_charged(store, tmp_path):
    model = model_with_dropout(store)
    model.transformer.drop.source = torch.Generator()
    with pytest.raises(UseError, match="of its own"):
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
