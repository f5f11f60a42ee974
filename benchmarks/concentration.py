"""Distances between users' mean gradients: the τ/C that Asi & Liu's filter would need.

    python -m benchmarks.concentration STORE ... [--users 128] [--json]

For a random sample of users with at least 10 examples, at the bundled base model's weights, and
for k = 2, 5, 10: g_i is the mean gradient of k random examples of user i, C the median of ‖g_i‖
(User-wise DP-SGD's clip norm by the median rule), and τ the least one at which four fifths of the
ordered pairs lie within τ (Chua et al. 2024, Algorithm 3, line 9: the score at its threshold, with
no room for AboveThreshold's noise). ``clipped`` is τ/C of the gradients clipped to C, which
Algorithm 3 does not do. The numbers are exact looks at the data: for public texts only.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.gradients.losses import row_losses
from userdp.gradients.models import trainable_parameters
from userdp.training.config import TrainConfig
from userdp.training.losses import build_loss
from userdp.training.models import load_model
from userdp.training.probe import draw_units

GROUP_SIZES = (2, 5, 10)
PAIRS = 0.8
"""Algorithm 3, line 9: 4N/5 of N."""
_BLOCK = 1 << 16


def grams(store: UserStore, *, users: int, seed: int) -> dict[int, NDArray[np.float64]]:
    """For each k, ⟨g_i, g_j⟩ of the users' mean gradients, (users, users)."""
    config = TrainConfig()
    model = load_model(config, store).eval()
    loss = build_loss(config, model)
    parameters = list(trainable_parameters(model).values())
    split, draw = store.split(Split.TRAIN), np.random.default_rng(seed)
    able = np.flatnonzero(split.counts >= GROUP_SIZES[-1])
    chosen = draw.permutation(able)[:users]
    units = draw_units(split, chosen, most=GROUP_SIZES[-1], draw=draw)
    sums_UP = torch.zeros(len(chosen), sum(p.numel() for p in parameters))
    found, before = {}, 0
    for group in GROUP_SIZES:
        for user in range(len(chosen)):
            first = int(units.offsets[user])
            rows = slice(first + before, first + group)
            lengths = units.lengths[rows]
            ids = units.input_ids[rows, : int(lengths.max())]
            # a row's loss is the mean over its own tokens, so the rows' gradients add up
            losses = row_losses(loss, model, ids, lengths, None)
            parts = torch.autograd.grad(losses.sum(), parameters)
            sums_UP[user] += torch.cat([part.flatten() for part in parts])
        gram = torch.zeros(len(chosen), len(chosen), dtype=torch.float64)
        for block in sums_UP.split(_BLOCK, dim=1):
            wide = block.double()
            gram += wide @ wide.T
        found[group], before = gram.numpy() / group**2, group
    return found


def concentration(gram: NDArray[np.float64]) -> dict[str, float]:
    """C, and over C: τ, the least distance of two users, and τ of the clipped gradients.

    >>> concentration(np.eye(128))["tau"]  # orthogonal gradients of norm 1: √2
    1.414...
    """
    norms = np.sqrt(np.diag(gram))
    clip = float(np.median(norms))
    scale = np.minimum(1.0, clip / norms)
    return {
        "clip_norm": clip,
        "tau": _distance(gram) / clip,
        "least": float(_distances(gram)[~np.eye(len(gram), dtype=bool)].min()) / clip,
        "clipped": _distance(gram * np.outer(scale, scale)) / clip,
    }


def _distances(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    own = np.diag(gram)
    return np.sqrt(np.maximum(own[:, None] + own[None] - 2 * gram, 0.0))


def _distance(gram: NDArray[np.float64]) -> float:
    """The least distance within which `PAIRS` of the ordered pairs lie, i = i' among them."""
    ordered = np.sort(_distances(gram), axis=None)
    return float(ordered[math.ceil(PAIRS * len(ordered)) - 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stores", nargs="+", type=Path)
    parser.add_argument("--users", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = [
        {"store": path.name, "users": len(gram), "group_size": group, **concentration(gram)}
        for path in arguments.stores
        for group, gram in grams(
            UserStore.open(path), users=arguments.users, seed=arguments.seed
        ).items()
    ]
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    print("| store | users | k | C | τ/C | least distance / C | τ/C, clipped |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        numbers = " | ".join(f"{row[key]:.3g}" for key in ("clip_norm", "tau", "least", "clipped"))
        print(f"| {row['store']} | {row['users']} | {row['group_size']} | {numbers} |")


if __name__ == "__main__":
    main()
