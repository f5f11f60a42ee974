"""A model whose item gradients are the items themselves, and silos of it."""

import numpy as np
import torch
from torch import nn

from userdp.federated.data import SubjectItems
from userdp.federated.silo import Silo

WIDTH = 6


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(WIDTH))


def linear_loss(model, rows, lengths):
    return rows.float() @ model.w


def items(counts, seed=0, scale=5):
    draw = np.random.default_rng(seed)
    owners = np.repeat(np.arange(len(counts)), counts)
    rows = draw.integers(-scale, scale + 1, size=(len(owners), WIDTH)).astype(np.int64)
    return SubjectItems.of(rows, np.full(len(rows), WIDTH, dtype=np.int64), owners)


def images(subjects, seed=0):
    """Random 8 x 8 images with random classes, 1 to 9 of a subject."""
    draw = np.random.default_rng(seed)
    owners = np.repeat(np.arange(subjects), draw.integers(1, 10, subjects))
    rows = draw.integers(0, 256, size=(len(owners), 65))
    rows[:, 64] %= 10
    return SubjectItems.of(rows, np.full(len(rows), 65, dtype=np.int64), owners)


def without(data, subject):
    return data.take(np.flatnonzero(data.subjects != subject))


def silo(folder, plan, data, index=0, kind=Silo, seed=None, **options):
    folder.mkdir(parents=True, exist_ok=True)
    return kind(
        folder,
        plan=plan,
        index=index,
        data=data,
        model=Linear(),
        loss=linear_loss,
        engine="reference",
        unsafe_seed=seed,
        **options,
    )


ZERO = {"w": np.zeros(WIDTH, dtype=np.float32)}
