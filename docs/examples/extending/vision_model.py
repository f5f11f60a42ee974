"""A small vision model: handwritten digits, private for each writer.

A store holds rows of whole numbers. For text these are tokens; here they are a label and 64 pixels
from 0 to 16, which a word-level tokenizer of the numbers 0 to 16 leaves as they are.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

import userdp

SIDE, CLASSES, BRIGHTEST = 8, 10, 16


def prepare(images: list[dict[str, str]], folder: Path) -> userdp.UserStore:
    """Rows such as ``{"writer": "w3", "image": "7 0 0 5 13 …"}``: the label, then the pixels."""
    numbers = {str(number): number for number in range(BRIGHTEST + 1)}
    tokenizer = Tokenizer(models.WordLevel({**numbers, "end": BRIGHTEST + 1}, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["end"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return userdp.prepare(
        images, user="writer", text="image", out=folder / "store",
        tokenizer=folder / "tokenizer.json", seq_len=SIDE * SIDE + 2,
    )  # fmt: skip


class Network(nn.Module):
    """One convolution and two linear layers; GroupNorm where others take BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(8 * 16, 32), nn.ReLU(), nn.Linear(32, CLASSES),
        )  # fmt: skip

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, 1 + pixels) → (rows, classes); every row is filled up or cut to its pixels."""
        pixels = F.pad(rows[:, 1:], (0, SIDE * SIDE))[:, : SIDE * SIDE].float() / BRIGHTEST
        scores: Tensor = self.layers(pixels.view(-1, 1, SIDE, SIDE))
        return scores


def label_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Cross-entropy of each image's label; a row that is no such image adds nothing."""
    places = torch.arange(input_ids.shape[1], device=input_ids.device)
    scores = model(torch.where(places < lengths[:, None], input_ids, 0).clamp(max=BRIGHTEST))
    known = input_ids[:, 0] < CLASSES
    return torch.where(known, F.cross_entropy(scores, input_ids[:, 0] * known, reduction="none"), 0)
