"""The simulated federations behind the figures of Marathe et al. 2023, and the studies of them."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.marathe import Study
from papers.marathe.federations import (
    NONE,
    PAPER_LINEAR,
    PAPER_SQRT,
    RATES,
    SEEDS,
    TIGHT,
    Size,
    federation,
    plan_of,
)
from papers.marathe.simulation import curve, item_gradients, silo_sum, train
from papers.studies.runs import read_rows
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.digits import digits
from userdp.federated.models import build_model
from userdp.gradients import Units, get_engine

DESIGNS = Path(__file__).parents[2] / "papers/designs"
RESULTS = Path(__file__).parents[2] / "docs/results/papers"
SMALL = Size(silos=4, silos_per_round=4, subjects=60, items_per_subject=12.0, planned_rounds=4)


@pytest.fixture(scope="module")
def small():
    """Items of a few hands, and the model at its first weights."""
    made = plan_of(SMALL, "local-group-dp", PAPER_SQRT, None, 15)
    model, loss = build_model(made.plan.model)
    records = digits(subjects=4, items_per_subject=5)
    subjects = np.array([int(r.user.split()[1]) for r in records])
    texts = [r.text.decode().partition(": ") for r in records]
    rows = torch.tensor([[int(label), *map(int, pixels.split())] for label, _, pixels in texts])
    return model, loss, rows, subjects


def by_engine(small, algorithm):
    model, loss, rows, subjects = small
    local = plan_of(SMALL, algorithm, PAPER_SQRT, None, 15).local
    return get_engine("reference")(
        model,
        loss,
        Units(
            input_ids=rows,
            lengths=torch.full((len(rows),), rows.shape[1]),
            offsets=torch.from_numpy(local.sampling.unit_offsets(subjects)),
        ),
        l2_clip_norm=local.clip.l2_norm,
        item_clip_norm=local.clip.item_norm,
    ).value


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "fedavg"])
def test_a_silos_sum_is_the_reference_engines(small, algorithm):
    model, _, rows, subjects = small
    gradients = item_gradients(model, rows)
    assert gradients.norm(dim=1).max() > 1  # the clip is at work
    ours = silo_sum(gradients, subjects, algorithm=algorithm, norm=1.0)
    value = by_engine(small, algorithm)
    exact = torch.cat([value[name].flatten() for name, _ in model.named_parameters()])
    assert (ours - exact).norm() < 1e-3 * exact.norm()  # the engine clips with a margin of 1e-3


def test_broken_twin_a_sum_without_the_clip_is_caught(small):
    model, _, rows, subjects = small
    gradients = item_gradients(model, rows)
    wrong = silo_sum(gradients, subjects, algorithm="local-group-dp", norm=1e9)
    value = by_engine(small, "local-group-dp")
    exact = torch.cat([value[name].flatten() for name, _ in model.named_parameters()])
    assert (wrong - exact).norm() > 1e-2 * exact.norm()


def test_accountings_of_a_cell_differ_in_rounds_and_noise_and_share_steps_and_batches():
    plans = {
        name: plan_of(SMALL, "local-group-dp", name, None, 9)
        for name in (TIGHT, PAPER_SQRT, PAPER_LINEAR)
    }
    rounds = {name: getattr(made, "plan", made).rounds for name, made in plans.items()}
    assert rounds == {TIGHT: 4, PAPER_SQRT: 2, PAPER_LINEAR: 1}  # R, R/√4, R/4
    assert len({made.local.steps for made in plans.values()}) == 1
    assert {plans[name].batch for name in (PAPER_SQRT, PAPER_LINEAR)} == {SMALL.batch}
    # The published noise is calibrated before the reduction.
    assert plans[PAPER_SQRT].local.noise == plans[PAPER_LINEAR].local.noise
    assert 3.99 < plans[TIGHT].guarantee().epsilon <= 4.0


def expected_items(size, alpha):
    """How many items a step of ``tight`` draws on average in a silo, by its data and its plan."""
    made = plan_of(size, "local-group-dp", TIGHT, alpha, 99)
    left = federation(size, size.tuning_seed, alpha).capped(size.cap)
    return len(left.rows) / size.silos * made.local.sampling.chance(1)


@pytest.mark.parametrize("alpha", [None, 16.0])
def test_a_step_expects_the_batch_if_the_declared_items_are_those_under_the_cap(alpha):
    size = replace(SMALL, subjects=400)
    assert expected_items(size, alpha) == pytest.approx(size.batch, rel=0.15)


def test_broken_twin_declaring_all_items_leaves_a_step_with_fewer_the_larger_alpha_is():
    """What the study ``marathe`` did; ``marathe-cap`` is without it."""
    size = replace(SMALL, subjects=400, declared_after_cap=False)
    uniform, uneven = expected_items(size, None), expected_items(size, 16.0)
    assert uneven < 0.7 * uniform < 0.9 * size.batch


def test_a_cap_keeps_no_more_of_a_subject_in_a_silo():
    data = federation(SMALL, 0, 8.0)
    left = data.capped(2)
    assert left.group_sizes.max() == 2
    assert len(left.rows) == np.minimum(data.group_sizes, 2).sum()


def test_equal_seeds_give_equal_runs_and_a_curve_ends_where_a_run_does():
    cell = {"algorithm": "higradavg-dp", "accounting": TIGHT, "alpha": None}
    rows = curve(SMALL, **cell, rate=1.0, seed=3, every=True)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert curve(SMALL, **cell, rate=1.0, seed=3, every=False) == rows[-1:]
    data = federation(SMALL, 3, None)
    made = plan_of(SMALL, "higradavg-dp", TIGHT, None, 9)
    assert train(made, data, batch=16, rate=1.0, seed=3).loss == rows[-1]["loss"]
    assert train(made, data, batch=16, rate=1.0, seed=4).loss != rows[-1]["loss"]


def test_the_figures_have_the_size_the_seeds_and_the_rates_of_the_study():
    design = tomllib.loads((DESIGNS / "marathe.toml").read_text(encoding="utf-8"))
    study = Study("marathe", RESULTS)
    assert study.size == replace(Size(), declared_after_cap=False)
    assert Study("marathe-cap", RESULTS).size == Size()
    assert tuple(design["seeds"]) == SEEDS
    rows = read_rows(study.results)
    uniform = [cell for cell in study.cells() if cell["alpha"] is None]
    assert {
        (cell["algorithm"], cell["accounting"]): study.tuned(rows, cell) for cell in uniform
    } == RATES
    assert Counter(name for _, name in RATES)[NONE] == 1


@pytest.mark.parametrize("name", ["marathe", "marathe-cap"])
def test_all_rows_of_a_study_are_of_its_design_and_none_is_missing(name):
    import hashlib

    study = Study(name, RESULTS)
    rows = read_rows(study.results)
    assert {row["design"] for row in rows} == {hashlib.sha256(study.file).hexdigest()}
    assert study.next_job(rows) is None
