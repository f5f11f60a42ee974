"""The simulated steps of the study of both reductions are those of the library's own engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import marathe
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.models import build_model
from userdp.gradients import Units, get_engine


@pytest.fixture(scope="module")
def small():
    """Items of a few hands, and the model at its first weights."""
    made = marathe.plan_of("local-group-dp", "paper-sqrt", None, 15)
    model, loss = build_model(made.plan.model)
    records = marathe.digits(subjects=4, items_per_subject=5)
    subjects = np.array([int(r.user.split()[1]) for r in records])
    texts = [r.text.decode().partition(": ") for r in records]
    rows = torch.tensor([[int(label), *map(int, pixels.split())] for label, _, pixels in texts])
    return model, loss, rows, subjects


def by_engine(small, algorithm):
    model, loss, rows, subjects = small
    accounting = "paper-sqrt"
    local = marathe.plan_of(algorithm, accounting, None, 15).local
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
    gradients = marathe.item_gradients(model, rows)
    assert gradients.norm(dim=1).max() > 1  # the clip is at work
    ours = marathe.silo_sum(gradients, subjects, algorithm=algorithm, norm=1.0)
    value = by_engine(small, algorithm)
    exact = torch.cat([value[name].flatten() for name, _ in model.named_parameters()])
    assert (ours - exact).norm() < 1e-3 * exact.norm()  # the engine clips with a margin of 1e-3


def test_broken_twin_a_sum_without_the_clip_is_caught(small):
    model, _, rows, subjects = small
    gradients = marathe.item_gradients(model, rows)
    wrong = marathe.silo_sum(gradients, subjects, algorithm="local-group-dp", norm=1e9)
    value = by_engine(small, "local-group-dp")
    exact = torch.cat([value[name].flatten() for name, _ in model.named_parameters()])
    assert (wrong - exact).norm() > 1e-2 * exact.norm()
