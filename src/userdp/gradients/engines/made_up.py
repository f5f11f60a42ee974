"""Made-up rows: what a model's code does is asked on rows that are nobody's."""

from __future__ import annotations

import torch
from torch import nn

from userdp.gradients.units import Units


def made_up(
    model: nn.Module, like: Units, rows: tuple[int, ...] = (1,), *, width: int = 6
) -> Units:
    """Units of so many rows each, of tokens that the model has, on the device of ``like``.

    Args:
        model: one without input embeddings gets tokens 0 and 1.
        like: decides whether tokens are marked, and the device; nothing of its rows is read.
        rows: of each unit.
        width: tokens of a row; every third row is one shorter and every third two, where that
            leaves it at least two.
    """
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    tokens = int(getattr(embeddings, "num_embeddings", 2))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(tokens, (sum(rows), width), generator=generator)
    lengths = [width - n % 3 if width > 3 else width for n in range(sum(rows))]
    return Units(
        input_ids=ids,
        lengths=torch.tensor(lengths, dtype=torch.int64),
        offsets=torch.tensor([0, *rows]).cumsum(0),
        targets=None if like.targets is None else torch.ones(ids.shape, dtype=torch.bool),
    ).to(like.lengths.device)
