"""Made-up handwritten digits in many hands, and LEAF's network for images, which learns them.

An image is a record ``CLASS: PIXEL PIXEL …`` with pixels from 0 to 255, as the source of kind
``leaf`` writes LEAF's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.core.environment import library
from userdp.data.records import Record

SIDE, CLASSES = 8, 10


class ImageNetwork(nn.Module):
    """LEAF's network for images: two convolutions with pooling, two dense layers.

    LEAF's own size for FEMNIST is ``width`` 32 on 28 x 28 pixels with 62 classes: 32 and 64
    channels, 2,048 hidden units. Ours is for the digits.

    Args:
        width: channels of the first convolution.
        seed: of the first weights.
    """

    def __init__(self, *, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.first = nn.Conv2d(1, width, 5, padding=2)
            self.second = nn.Conv2d(width, 2 * width, 5, padding=2)
            self.hidden = nn.Linear((SIDE // 4) ** 2 * 2 * width, 64 * width)
            self.out = nn.Linear(64 * width, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """(items, 1 + pixels) → (items, classes); constants centre and scale the pixels."""
        x = ((rows[:, 1:].float() / 255 - 0.3) * 2.5).view(-1, 1, SIDE, SIDE)
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        logits: Tensor = self.out(F.relu(self.hidden(x.flatten(1))))
        return logits


def digits(
    *, subjects: int, items_per_subject: float, seed: int = 0, spread_of_sizes: float = 0.6
) -> list[Record]:
    """Handwritten digits of many subjects: scikit-learn's, each subject with a hand of its own.

    A hand is a fixed random affine map (rotation, shear, scale, shift) and a pen pressure. A
    subject's number of items is log-normal. Images are 8 x 8 with values 0 … 255, written as the
    source of kind ``leaf`` writes LEAF's.

    Args:
        subjects: how many.
        items_per_subject: their mean number.
        seed: of everything drawn.
        spread_of_sizes: standard deviation of the logarithm of a subject's number of items.

    Raises:
        UseError: scikit-learn is not installed.
    """
    data_sets = library("sklearn.datasets", extra="federated", what="a federation of digits")
    from scipy.ndimage import affine_transform

    source = data_sets.load_digits()
    images, labels = source.images.astype(np.float64) / 16.0, source.target.astype(np.int64)
    draw = np.random.default_rng(seed)
    drift = -0.5 * spread_of_sizes**2
    sizes = np.maximum(
        1, draw.lognormal(math.log(items_per_subject) + drift, spread_of_sizes, subjects).round()
    ).astype(np.int64)
    records: list[Record] = []
    for subject, size in enumerate(sizes):
        angle, shear = draw.normal(0, 0.2), draw.normal(0, 0.15)
        scale = np.exp(draw.normal(0, 0.1, 2))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = turn @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag(scale)
        offset = np.array([3.5, 3.5]) - matrix @ np.array([3.5, 3.5]) + draw.normal(0, 0.4, 2)
        pressure = np.exp(draw.normal(0, 0.2))
        for image in draw.integers(len(images), size=size):
            drawn = affine_transform(images[image], matrix, offset, order=1)
            pixels = np.clip(drawn.ravel() * pressure * 255, 0, 255).round().astype(np.int64)
            text = f"{labels[image]}: {' '.join(map(str, pixels))}"
            records.append(Record(f"hand {subject:05d}".encode(), text.encode()))
    return records
