"""A silo's items: rows of numbers, each with its subject; and how a data set becomes silos.

Subjects are numbered within a silo, afresh in each: nothing relies on a subject being recognised in
two of them.
"""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from userdp.errors import UseError
from userdp.files import OPERATOR_FILE, write_file
from userdp.vocabulary import require_count, require_positive

Rows = NDArray[np.int64]

DATA_FILE = "items.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class SubjectItems:
    """Items with their subjects.

    Args:
        rows: int64, (items, width): pixels and then the label, or tokens.
        lengths: int64, (items,): how much of a row counts.
        subjects: int64, (items,): 0 … subjects - 1, ascending; each has at least one item.
    """

    rows: Rows
    lengths: Rows
    subjects: Rows

    def __post_init__(self) -> None:
        items = len(self.rows)
        if self.rows.ndim != 2 or self.lengths.shape != (items,) or self.subjects.shape != (items,):
            raise UseError(
                f"items of shape {self.rows.shape} came with {self.lengths.shape} lengths and "
                f"{self.subjects.shape} subjects"
            )
        for array in (self.rows, self.lengths, self.subjects):
            if array.dtype != np.int64:
                raise UseError(f"items are int64 numbers, got {array.dtype}")
        if items and not (
            self.subjects[0] == 0 and bool(np.isin(np.diff(self.subjects), (0, 1)).all())
        ):
            raise UseError("subjects must be numbered from 0, ascending, without gaps")

    @property
    def items(self) -> int:
        """How many items there are; operator-only."""
        return len(self.rows)

    @property
    def counts(self) -> Rows:
        """Items of each subject, (subjects,); operator-only."""
        return np.bincount(self.subjects).astype(np.int64)

    @classmethod
    def of(cls, rows: Rows, lengths: Rows, owners: NDArray[np.generic]) -> Self:
        """Items in any order with any owners: sorted by owner, and the owners numbered."""
        _, numbers = np.unique(owners, return_inverse=True)
        order = np.argsort(numbers, kind="stable")
        return cls(
            rows=rows[order],
            lengths=lengths[order],
            subjects=numbers[order].astype(np.int64),
        )

    def take(self, chosen: NDArray[np.generic]) -> SubjectItems:
        """The chosen items; subjects are numbered afresh."""
        return SubjectItems.of(self.rows[chosen], self.lengths[chosen], self.subjects[chosen])

    def capped(self, group_size: int, generator: np.random.Generator) -> tuple[SubjectItems, int]:
        """At most ``group_size`` random items of each subject, and how many were left out.

        Guarantee: which of a subject's items stay depends on that subject's number of items and on
        coins, never on other subjects, provided that the coins are secret: with a known seed, who
        else is there decides which coins are a subject's.
        """
        require_count("group_size", group_size)
        coins = generator.random(self.items)
        order = np.lexsort((coins, self.subjects))
        starts = np.concatenate([[0], np.cumsum(self.counts)[:-1]]) if self.items else self.subjects
        ranks = np.arange(self.items) - starts[self.subjects[order]]
        kept = np.sort(order[ranks < group_size])
        return self.take(kept), self.items - len(kept)

    def save(self, path: Path) -> None:
        """Write the items for their operator alone, whole or not at all.

        Raises:
            UseError: there are none. This is where a silo without subjects is refused: once a
                federation runs, a refusal would tell the server who is there.
        """
        if not self.items:
            raise UseError(
                f"the silo for {path} has no subjects: it could only add noise",
                hint="take it out of the federation, or spread the data over fewer silos",
            )
        buffer = io.BytesIO()
        np.savez_compressed(buffer, rows=self.rows, lengths=self.lengths, subjects=self.subjects)
        write_file(path, buffer.getvalue(), mode=OPERATOR_FILE)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a silo's items; `UseError` where the file is not one."""
        try:
            with np.load(path, allow_pickle=False) as found:
                return cls(**{name: found[name] for name in ("rows", "lengths", "subjects")})
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            if isinstance(error, UseError):
                raise
            raise UseError(f"cannot read a silo's items from {path}: {error}") from error


def spread(
    data: SubjectItems, silos: int, generator: np.random.Generator, *, alpha: float | None = None
) -> list[SubjectItems]:
    """The items of every subject spread over ``silos``, independently of each other.

    Args:
        data: all items.
        silos: n.
        generator: of the coins.
        alpha: None: each silo is equally likely. Else the silo ⌊n x⌋ with x of density α x^(α-1)
            on [0, 1], in an order of the silos that is drawn for each subject: the larger α, the
            more of a subject's items lie in one silo, and all silos stay alike.

    Source: Marathe et al. 2023, Sections 5.1 and 5.2. The order for each subject is our reading:
    with it the largest group of a mini-batch grows with α as published, with one order for all it
    does not.
    """
    require_count("silos", silos)
    if alpha is None:
        places = generator.integers(silos, size=data.items)
    else:
        require_positive("alpha", alpha)
        orders = generator.permuted(np.tile(np.arange(silos), (len(data.counts), 1)), axis=1)
        ranks = (silos * generator.power(alpha, data.items)).astype(np.int64)
        places = orders[data.subjects, np.minimum(ranks, silos - 1)]
    return [data.take(np.flatnonzero(places == silo)) for silo in range(silos)]


def split_items(
    data: SubjectItems, generator: np.random.Generator, *, held_out: float = 0.2
) -> tuple[SubjectItems, SubjectItems]:
    """Items for training and held-out ones, by a coin for each item (the paper's 80/20).

    Raises:
        UseError: ``held_out`` is not in (0, 1).
    """
    if not 0 < held_out < 1:
        raise UseError(f"held_out must be greater than 0 and less than 1, got {held_out!r}")
    out = generator.random(data.items) < held_out
    return data.take(np.flatnonzero(~out)), data.take(np.flatnonzero(out))


def digits(
    *, subjects: int, items_per_subject: float, seed: int = 0, spread_of_sizes: float = 0.6
) -> SubjectItems:
    """Handwritten digits of many subjects: scikit-learn's, each subject with a hand of its own.

    A hand is a fixed random affine map (rotation, shear, scale, shift) and a pen pressure. A
    subject's number of items is log-normal. Images are 8 x 8 with values 0 … 255.

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
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UseError(
            "the digits are those of scikit-learn, which is not installed",
            hint="pip install 'userdp[federated]'",
        ) from error
    from scipy.ndimage import affine_transform

    source = load_digits()
    images, labels = source.images.astype(np.float64) / 16.0, source.target.astype(np.int64)
    draw = np.random.default_rng(seed)
    drift = -0.5 * spread_of_sizes**2
    sizes = np.maximum(
        1, draw.lognormal(math.log(items_per_subject) + drift, spread_of_sizes, subjects).round()
    ).astype(np.int64)
    rows = np.empty((int(sizes.sum()), 65), dtype=np.int64)
    place = 0
    for size in sizes:
        angle, shear = draw.normal(0, 0.2), draw.normal(0, 0.15)
        scale = np.exp(draw.normal(0, 0.1, 2))
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = turn @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag(scale)
        offset = np.array([3.5, 3.5]) - matrix @ np.array([3.5, 3.5]) + draw.normal(0, 0.4, 2)
        pressure = np.exp(draw.normal(0, 0.2))
        for image in draw.integers(len(images), size=size):
            drawn = affine_transform(images[image], matrix, offset, order=1)
            rows[place, :64] = np.clip(drawn.ravel() * pressure * 255, 0, 255).round()
            rows[place, 64] = labels[image]
            place += 1
    return SubjectItems.of(
        rows, np.full(len(rows), 65, dtype=np.int64), np.repeat(np.arange(subjects), sizes)
    )
