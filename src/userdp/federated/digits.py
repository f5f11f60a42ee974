"""Made-up handwritten digits by subject: what stands for FEMNIST where there is no network."""

from __future__ import annotations

import math

import numpy as np

from userdp.data.records import Record
from userdp.extras import library
from userdp.vocabulary import require_count, require_positive


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
        UseError: scikit-learn is not installed, or a number out of range.
    """
    require_count("subjects", subjects)
    require_positive("items_per_subject", items_per_subject)
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
            records.append(Record(f"hand {subject:05d}".encode(), text.encode(), len(records)))
    return records
