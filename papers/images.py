"""Images in silos, as LEAF's and made-up digits: tokens, and LEAF's network.

An image is a record ``CLASS: PIXEL PIXEL …`` with pixels from 0 to 255, as the source of kind
``leaf`` writes LEAF's; its tokens are these numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from userdp.core.environment import library
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_count, require_positive
from userdp.data.records import Record
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.federated.federation_plan import ModelSpec
from userdp.federated.silo import build_model
from userdp.gradients import Loss

BRIGHTEST = 255
"""The largest value of a pixel; the least is 0."""


def number_tokenizer() -> StoreTokenizer:
    """A token for each number from 0 to 255, and one (256) for all else."""
    vocabulary = {**{str(number): number for number in range(256)}, "[UNK]": 256}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[: ]+"), "removed")
    return StoreTokenizer(
        encoder=tokenizer,
        markup_encoder=tokenizer,
        content=tokenizer.to_str().encode(),
        vocab_size=len(vocabulary),
        end_of_text_id=None,
    )


@dataclass(frozen=True, kw_only=True)
class LeafCNN(ModelSpec):
    """LEAF's network for square images; an item is its class and then its pixels (0 … 255).

    Args:
        width: channels of the first convolution.
        classes: how many there are; an item of any other class adds nothing.
    """

    kind: ClassVar[str] = "leaf-cnn"

    width: int
    classes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("width", self.width, at_most=10**6)
        require_count("classes", self.classes, at_most=256)
        if self.side**2 + 1 != self.seq_len:
            raise UseError(f"{self.seq_len - 1} pixels are no square image")

    @property
    def side(self) -> int:
        """Pixels of an image's side."""
        return math.isqrt(self.seq_len - 1)


class ImageNetwork(nn.Module):
    """LEAF's network for images: two convolutions with pooling, two dense layers.

    LEAF's own size for FEMNIST is ``width`` 32 on 28 x 28 pixels with 62 classes: 32 and 64
    channels, 2,048 hidden units.
    """

    def __init__(self, *, side: int, classes: int, width: int) -> None:
        super().__init__()
        self.side = side
        self.classes = classes
        self.first = nn.Conv2d(1, width, 5, padding=2)
        self.second = nn.Conv2d(width, 2 * width, 5, padding=2)
        left = (side // 4) ** 2 * 2 * width
        self.hidden = nn.Linear(left, 64 * width)
        self.out = nn.Linear(64 * width, classes)

    def forward(self, rows: Tensor) -> Tensor:
        """Items of any width, (rows, 1 + pixels) → (rows, classes).

        Pixels are centred and scaled by public constants. An item of too few pixels is filled up
        and one of too many is cut: no item's content raises anything, which others would see.
        """
        pixels = rows[:, 1:].clamp(max=BRIGHTEST).float() / BRIGHTEST
        pixels = F.pad(pixels, (0, self.side**2 - pixels.shape[1]))
        x = ((pixels - 0.3) * 2.5).view(-1, 1, self.side, self.side)
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        logits: Tensor = self.out(F.relu(self.hidden(x.flatten(1))))
        return logits


def image_loss(model: nn.Module, rows: Tensor, lengths: Tensor) -> Tensor:
    """Cross-entropy of each image's class, zero for a class that the model does not have.

    Such an item adds nothing, as if it were absent: refusing it would tell others what it holds.
    """
    places = torch.arange(rows.shape[1], device=rows.device)
    logits = model(torch.where(places < lengths[:, None], rows, 0))
    known = rows[:, 0] < logits.shape[1]
    losses = F.cross_entropy(logits, torch.where(known, rows[:, 0], 0), reduction="none")
    return torch.where(known, losses, 0.0)


@build_model.register
def _(spec: LeafCNN) -> tuple[nn.Module, Loss]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        return ImageNetwork(side=spec.side, classes=spec.classes, width=spec.width), image_loss


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
            records.append(Record(f"hand {subject:05d}".encode(), text.encode()))
    return records
