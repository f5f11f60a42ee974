"""Measure gradient norms on a store's users, for the planner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.gradients import Units
from userdp.gradients.probe import ProbedNorms, probe_norms
from userdp.guarantees import require_count
from userdp.planning.norms import GradientNorms, NormSource
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.losses import build_loss
from userdp.training.models import load_model

_QUARTILES = {"p25": 0.25, "p75": 0.75}


def probe_store(
    store: UserStore,
    config: TrainConfig,
    *,
    source: NormSource = NormSource.HELD_OUT,
    users: int = 128,
    max_group_size: int = 16,
    seed: int | None = None,
    progress: Progress | None = None,
) -> GradientNorms:
    """Median gradient norms of ``users`` random users, for G = 1, 2, 4, … ``max_group_size``.

    Each user's examples are taken in a random order; one pass over the first ``max_group_size`` of
    them gives the norms for every G.

    Args:
        store: whose users are measured: those held out (``HELD_OUT``), else its training users,
            who are public people (``PUBLIC``) or private (``NON_PRIVATE``).
        config: the model, its precision and adapters; the weights are those training begins with.
        source: what the numbers are to be called; no claim covers any but public ones.
        users: how many to draw, without replacement; all if there are fewer.
        max_group_size: the largest G.
        seed: of the users and examples drawn; the operating system's by default.
        progress: is told how many users are done.

    Raises:
        UseError: there are no such users, the model does not fit the store, a number is out of
            range, or ``source`` is ``DP_RELEASE``: this measures exactly.

    Source: Charles et al. 2024, Equation 8 and Appendix F.1 (128 users, the median).
    """
    require_count("users", users)
    grid = power_grid(max_group_size)
    if source is NormSource.DP_RELEASE:
        raise UseError("the probe measures exactly: it cannot make a DP release")
    split = store.split(Split.HELD_OUT_USERS if source is NormSource.HELD_OUT else Split.TRAIN)
    if not len(split.counts):
        raise UseError(
            f"the store at {store.path} has no users in its split {split.name}: there is nothing "
            "to measure",
            hint="prepare it with --held-out-users 0.1, or probe a store of public text with "
            "--source public",
        )
    progress = progress or NoProgress()
    units, counts = draw_units(split, users=users, most=grid[-1], seed=seed)
    model = add_adapters(load_model(config, store), config)
    progress.stage("probe", len(units))
    found = probe_norms(model, build_loss(config, model), units, group_sizes=grid, done=progress.at)
    return GradientNorms(
        model=Path(config.model).name,
        users=len(units),
        user_norms={size: found.user_median(size) for size in grid},
        example_norm=found.example_median(),
        source=source,
        quantiles=None if source is NormSource.PUBLIC else _quartiles(found),
        median_examples_per_user=max(1, int(np.median(counts))),
    )


def draw_units(
    split: StoreSplit, *, users: int, most: int, seed: int | None = None
) -> tuple[Units, NDArray[np.int64]]:
    """Random users of a split, each with at most ``most`` of its examples in random order.

    Returns:
        The users as units, and how many examples each of them has in the split.
    """
    draw = np.random.default_rng(seed)
    chosen = draw.permutation(len(split.counts))[:users]
    counts = split.counts[chosen]
    orders = [draw.permutation(int(count))[:most] for count in counts]
    sizes = np.array([len(order) for order in orders], dtype=np.int64)
    rows = split.gather(np.repeat(chosen, sizes), np.concatenate(orders))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Units.from_flat(rows.tokens, rows.offsets, offsets, rows.targets), counts


def power_grid(largest: int) -> tuple[int, ...]:
    """1, 2, 4, … up to ``largest``, and ``largest`` itself.

    >>> power_grid(12)
    (1, 2, 4, 8, 12)
    """
    require_count("max_group_size", largest, at_most=10**6)
    powers = [2**power for power in range(largest.bit_length()) if 2**power < largest]
    return (*powers, largest)


def _quartiles(found: ProbedNorms) -> dict[str, dict[str, float]]:
    """How far the norms of users spread, by group size; operator-only."""
    spread = {}
    for name, quantile in _QUARTILES.items():
        columns = {}
        for column, size in enumerate(found.group_sizes):
            norms = found.users[:, column]
            columns[str(size)] = float(norms[norms.isfinite()].quantile(quantile))
        spread[name] = columns
    return spread
