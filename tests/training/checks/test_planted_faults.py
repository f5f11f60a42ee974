"""A mechanism that is broken on purpose is seen by `userdp selftest`, by its invariant."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.plans import els_plan, uls_plan
from tests.training.checks.subjects import failures, subject_of
from tests.training.toy import CONFIG, toy_model
from userdp.gradients import clipping, model_randomness
from userdp.gradients import noise as drawing
from userdp.gradients.engines import ENGINES, Engine, reference
from userdp.gradients.noise import NoiseSource
from userdp.sampling import coins, poisson
from userdp.training.models import new_model

PLANTED = re.compile(r"test_invariant_(\d+)_twin_(\w+)")
"""The name of each test: the invariant that is told, and what was planted."""


@pytest.fixture
def told(request):
    """``told(store, model)``: what did not hold, of the invariant of the test among others."""
    (number,) = PLANTED.findall(request.node.originalname)[0][:1]

    def of_subject(store, model: Any = None, **options: Any) -> str:
        model = toy_model(store) if model is None else model
        plan = options.pop("plan", uls_plan())
        found = failures(subject_of(model, plan, **options))
        assert any(f"invariant {number} asks" in one for one in found), found
        return "\n".join(found)

    return of_subject


def noisy(change: Callable[[dict[str, torch.Tensor], float], None]) -> Any:
    """`NoiseSource.add_`, and then what ``change`` does."""
    honest = NoiseSource.add_

    def add_(self: NoiseSource, value: dict[str, torch.Tensor], noise_std: float) -> None:
        honest(self, value, noise_std)
        change(value, noise_std)

    return add_


def test_invariant_5_twin_noise_that_is_a_tenth_too_small(told, store, monkeypatch):
    honest = NoiseSource.add_
    monkeypatch.setattr(
        NoiseSource, "add_", lambda self, value, std: honest(self, value, 0.9 * std)
    )
    error = told(store)
    assert "invariant 5" in error
    assert re.search(r"all parameters together.* deviation 0\.(89|90)", error)


def test_invariant_5_twin_noise_without_a_layer(told, store, monkeypatch):
    monkeypatch.setattr(
        NoiseSource, "add_", noisy(lambda value, std: list(value.values())[-1].zero_())
    )
    assert "the noise of transformer.ln_f.bias" in told(store)


def test_invariant_5_twin_noise_that_comes_twice_in_one_step(told, store, monkeypatch):
    def same(value: dict[str, torch.Tensor], std: float) -> None:
        names = [name for name in value if name.endswith("ln_1.weight")] + [
            name for name in value if name.endswith("ln_2.weight")
        ]
        value[names[1]].copy_(value[names[0]])

    monkeypatch.setattr(NoiseSource, "add_", noisy(same))
    assert "share noise" in told(store)


def test_invariant_5_twin_noise_that_comes_again_in_the_next_step(told, store, monkeypatch):
    kept: dict[str, torch.Tensor] = {}

    def again(value: dict[str, torch.Tensor], std: float) -> None:
        for name, part in value.items():
            scaled = kept.setdefault(name, part / std)
            if scaled.shape == part.shape:
                part.copy_(scaled * std)

    monkeypatch.setattr(NoiseSource, "add_", noisy(again))
    assert "no two steps" in told(store)


def test_invariant_5_twin_a_generator_that_is_seeded_with_a_constant(told, store, monkeypatch):
    seeds = tuple(np.random.SeedSequence(draw) for draw in range(2))
    monkeypatch.setattr(NoiseSource, "_block_seeds", lambda self: seeds)
    assert "no two steps" in told(store)


def test_invariant_5_twin_a_tail_that_is_cut_at_six_deviations(told, store, monkeypatch):
    honest = drawing.draw_on_host

    def cut(generator: Any, out: Any) -> None:
        honest(generator, out)
        out.clip(-6, 6, out=out)

    monkeypatch.setattr(drawing, "draw_on_host", cut)
    assert "ends where delta is charged" in told(store)


def test_invariant_5_twin_draws_in_float32(told, store, monkeypatch):
    honest = drawing.draw_on_host

    def narrow(generator: Any, out: Any) -> None:
        honest(generator, out)
        near = np.abs(out) < 6
        out[near] = out[near].astype(np.float32)

    monkeypatch.setattr(drawing, "draw_on_host", narrow)
    assert "float32 can hold" in told(store)


@pytest.mark.parametrize("scaled", ["before", "after"])
def test_invariant_5_twin_noise_in_float32(told, store, monkeypatch, scaled):
    def add_(self: NoiseSource, value: dict[str, torch.Tensor], std: float) -> None:
        grid = 2.0 ** (math.frexp(std)[1] - 1 - 20)
        for part in value.values():
            noise = torch.randn(part.shape)
            noise = (noise * std).double() if scaled == "before" else noise.double() * std
            part.copy_(((part + noise) / grid).round() * grid)

    monkeypatch.setattr(NoiseSource, "add_", add_)
    assert "no lattice of float32" in told(store)


def test_invariant_5_twin_noise_off_the_grid(told, store, monkeypatch):
    monkeypatch.setattr(
        NoiseSource,
        "add_",
        noisy(lambda value, std: [v.add_(std * 1e-9) for v in value.values()] and None),
    )
    assert "off the public grid" in told(store)


def engine(change: Callable[[Any], Any], name: str = "auto") -> Engine:
    honest = ENGINES[name]
    return Engine(lambda task: change(honest.compute(task)))


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_3_twin_a_layer_whose_gradient_is_dropped_from_the_sum(
    told, store, monkeypatch, name
):
    def dropped(total: Any) -> Any:
        total.value["transformer.ln_f.weight"].zero_()
        return total

    monkeypatch.setitem(ENGINES, name, engine(dropped, name))
    error = told(store, engine=name)
    assert "invariant 3" in error
    assert "transformer.ln_f.weight" in error


def test_invariant_3_twin_a_norm_of_one_parameter_only(told, store, monkeypatch):
    honest = clipping.ClipRule.factors

    def first(self, squared_norms, sizes, *, l2_clip_norm):
        name = list(squared_norms)[-1]
        one = honest(self, {name: squared_norms[name]}, sizes, l2_clip_norm=l2_clip_norm)
        return dict.fromkeys(squared_norms, one[name])

    monkeypatch.setattr(clipping.ClipRule, "factors", first)
    assert "moves the clipped sum by more" in told(store)


def test_invariant_3_twin_norms_that_are_told_too_small(told, store, monkeypatch):
    honest = reference.squared_norms

    def fewer(tensors: Any) -> torch.Tensor:
        squares = honest(tensors)
        squares[0] = 0
        return squares

    monkeypatch.setattr(reference, "squared_norms", fewer)
    assert "the norm of made-up unit" in told(store, engine="reference")


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_3_twin_a_margin_of_more_than_the_clip_norm(told, store, monkeypatch, name):
    honest = clipping.clip_factors

    def more(squares: Any, *, l2_clip_norm: float, stability: Any = None) -> Any:
        return honest(squares, l2_clip_norm=1.002 * l2_clip_norm, stability=stability)

    monkeypatch.setattr(clipping, "clip_factors", more)
    assert "by more than the clip norm" in told(store, engine=name)


def test_invariant_6_twin_an_infinite_gradient_that_counts_as_its_direction(
    told, store, monkeypatch
):
    honest = ENGINES["reference"].compute

    def lenient(task: Any) -> Any:
        total = honest(task)
        if total.non_finite:
            next(iter(total.value.values())).add_(task.l2_clip_norm)
        return total

    monkeypatch.setitem(ENGINES, "reference", Engine(lenient))
    assert "invariant 6" in told(store, engine="reference")


def dropping(store) -> torch.nn.Module:
    model = new_model(
        replace(CONFIG, dropout=0.2),
        vocab_size=store.meta.vocab_size,
        seq_len=store.meta.seq_len,
    )
    return model.train()


def test_invariant_14_twin_masks_from_a_public_seed(told, store, monkeypatch):
    monkeypatch.setattr(model_randomness, "_load_states", lambda draw, **options: None)
    error = told(store, dropping(store))
    assert "invariant 14" in error


def test_invariant_14_twin_masks_that_differ_between_passes_over_a_unit(told, store, monkeypatch):
    def other_masks(task: Any) -> Any:
        total = ENGINES["reference"].compute(task)
        total.norms = ENGINES["reference"].compute(task).norms
        return total

    monkeypatch.setitem(ENGINES, "auto", Engine(other_masks))
    assert "invariant 14" in told(store, dropping(store))


@pytest.mark.parametrize("plan", [uls_plan(), els_plan()], ids=["users", "examples"])
def test_invariant_2_twin_a_sampler_of_twice_the_probability(told, store, monkeypatch, plan):
    honest = coins.poisson_indices
    monkeypatch.setattr(coins, "poisson_indices", lambda g, n, q: honest(g, n, min(1.0, 2 * q)))
    assert "invariant 2" in told(store, plan=plan)


def test_invariant_2_twin_a_sampler_that_draws_neighbours_together(told, store, monkeypatch):
    def pairs(self, total, generator):
        while True:
            half = coins.poisson_indices(generator, total // 2, self.sampling_probability)
            yield np.sort(np.concatenate([2 * half, 2 * half + 1]))

    monkeypatch.setattr(poisson.Poisson, "draws", pairs)
    assert "neighbours" in told(store)


def test_invariant_2_twin_a_sampler_from_a_public_seed(told, store, monkeypatch):
    monkeypatch.setattr(coins, "secrets", SimpleNamespace(randbits=random.getrandbits))
    assert "repeats the cohorts" in told(store)


def test_invariant_2_twin_the_same_sampler_for_every_step(told, store, monkeypatch):
    def same(self, total, generator):
        one = coins.poisson_indices(generator, total, self.sampling_probability)
        while True:
            yield one

    monkeypatch.setattr(poisson.Poisson, "draws", same)
    assert "invariant 2" in told(store)
