"""The figures of Marathe et al. 2023: what is simulated, by the reference engine and in small."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.rows import whole_rows
from papers import marathe
from papers.__main__ import main
from papers.design import DESIGNS
from papers.images import SIDE, ImageNetwork, digits
from papers.marathe import (
    NONE,
    PAPER_SQRT,
    RATES,
    SEEDS,
    TIGHT,
    TUNING_SEED,
    Size,
    federation,
    item_gradients,
    plan_of,
    silo_sum,
)
from papers.published import Reduction
from papers.runs import RESULTS
from userdp.federated.algorithms import ALGORITHMS
from userdp.gradients import Units, get_engine

SMALL = Size(silos=4, subjects=60, items_per_subject=12.0, planned_rounds=4)


@pytest.fixture
def tiny(monkeypatch):
    size = Size(silos=2, subjects=40, items_per_subject=6.0, planned_rounds=2)
    few = {("fedavg", NONE): 0.3, ("higradavg-dp", PAPER_SQRT): 1.0, ("local-group-dp", TIGHT): 1.0}
    for name, value in {"SIZE": size, "RATES": few, "SEEDS": (0, 1), "ALPHAS": (None, 8.0)}.items():
        monkeypatch.setattr(marathe, name, value)


@pytest.mark.parametrize("number", [1, 3])
def test_each_figure_is_written(tiny, tmp_path, capsys, number):
    name = f"marathe-figure-{number}"
    assert main([name, "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.csv").read_text().count("\n") > 1


def test_the_papers_own_rounds_are_those_of_its_reduction_and_not_of_the_linear_one():
    """Marathe et al. 2023, Figure 1: 25 rounds of 100 on FEMNIST, 50 of 200 on Shakespeare."""
    for planned, printed in ((100, 25), (200, 50)):
        assert Reduction.PUBLISHED.rounds(planned, silos_per_round=16) == printed
        assert Reduction.LINEAR.rounds(planned, silos_per_round=16) != printed
        # s silos of R/√s rounds take √s times the R rounds for which the noise was calibrated.
        assert 16 * printed == 4 * planned


@pytest.fixture(scope="module")
def small():
    """Items of a few hands, and the model at its first weights."""
    model = ImageNetwork(width=SMALL.width, seed=0)
    records = digits(subjects=4, items_per_subject=5)
    subjects = np.array([int(r.user.split()[1]) for r in records])
    texts = [r.text.decode().partition(": ") for r in records]
    rows = torch.tensor([[int(label), *map(int, pixels.split())] for label, _, pixels in texts])
    return model, rows, subjects


def loss(model, rows, lengths):
    """That of whole images. Rows that the engine makes up to certify the loss are shorter."""
    read = torch.where(torch.arange(rows.shape[1]) < lengths[:, None], rows, 0)
    images = nn.functional.pad(read, (0, 1 + SIDE**2 - rows.shape[1]))
    return nn.functional.cross_entropy(model(images), images[:, 0], reduction="none")


def by_engine(small, algorithm):
    model, rows, subjects = small
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
def test_a_silos_sum_is_the_reference_engines_and_one_without_the_clip_is_caught(small, algorithm):
    model, rows, subjects = small
    gradients = item_gradients(model, rows)
    assert gradients.norm(dim=1).max() > 1  # the clip is at work
    value = by_engine(small, algorithm)
    exact = torch.cat([value[name].flatten() for name, _ in model.named_parameters()])
    ours = silo_sum(gradients, subjects, algorithm=algorithm, norm=1.0)
    assert (ours - exact).norm() < 1e-3 * exact.norm()  # the engine clips with a margin of 1e-3
    wrong = silo_sum(gradients, subjects, algorithm=algorithm, norm=1e9)
    assert (wrong - exact).norm() > 1e-2 * exact.norm() or algorithm == "user-ldp"


@pytest.mark.parametrize("alpha", [None, 16.0])
def test_a_step_expects_the_batch_since_the_declared_items_are_those_under_the_cap(alpha):
    """The study ``marathe`` declared all items: a step then had fewer, the larger alpha is."""
    size = replace(SMALL, subjects=400)
    made = plan_of(size, "local-group-dp", TIGHT, alpha, 99)
    left = len(federation(size, TUNING_SEED, alpha).capped(size.cap).rows) / size.silos
    assert left * made.local.sampling.chance(1) == pytest.approx(size.batch, rel=0.15)


def test_rates_are_those_of_least_loss_in_the_studys_rows():
    design = tomllib.loads((DESIGNS / "marathe.toml").read_text(encoding="utf-8"))
    assert (tuple(design["seeds"]), design["tuning_seed"]) == (SEEDS, TUNING_SEED)
    rows = [r for r in whole_rows(RESULTS / "marathe.jsonl") if r["key"]["seed"] == TUNING_SEED]
    for (algorithm, accounting), rate in RATES.items():
        own = [
            (math.inf if row["loss"] is None else row["loss"], row["key"]["rate"])
            for row in rows
            if (row["key"]["algorithm"], row["key"]["accounting"]) == (algorithm, accounting)
        ]
        assert len(own) == len(design["tuning"]["rates"])
        assert min(own)[1] == rate
