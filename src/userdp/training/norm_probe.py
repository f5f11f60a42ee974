r"""Measure gradient norms on a store's users, for the planner.

For a user's examples in random order, z_1, …, z_n, and the group sizes G of a grid,

.. math:: \rho(G) = \Big\|\frac{1}{\min(G, n)} \sum_{j \le \min(G, n)} \nabla f(\theta, z_j)\Big\|

The means of one user are over nested subsets of one random order: each is over a random subset, as
Equation 8 asks, and the noise of the choice cancels in the ratios of Equation 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.core.environment import library
from userdp.core.errors import UseError
from userdp.core.stages import Progress, Uncounted
from userdp.core.vocabulary import require_count
from userdp.data.splits import Split
from userdp.data.user_store import StoreSplit, UserStore
from userdp.gradients import Loss, Units, clipped_sum, require_uncoupled
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.ledger import StoreLedger
from userdp.plans.gradient_norms import GradientNorms, Measure, require_informative
from userdp.plans.provenance import Provenance
from userdp.queries.statistics import charge, draw_medians, rank_error
from userdp.sampling.draws import secret_generator
from userdp.training.causal_models import load_model
from userdp.training.collate import gather_units
from userdp.training.config import TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.lora import choose_trained
from userdp.training.model_origin import digests_of, ledger_id, lineage_of_model, made_with
from userdp.training.store_losses import build_loss


def probe_store(
    store: UserStore,
    config: TrainConfig,
    who: Measure,
    *,
    population: int | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> GradientNorms:
    """Median gradient norms of random users, for G = 1, 2, 4, … ``who.max_group_size``.

    Guarantee: with the source ``DP_RELEASE`` the result is (``who.epsilon``, 0)-DP per user,
    add-or-remove: each training user is measured by a coin of their own, and the medians are drawn
    by `userdp.queries.statistics`, charged before anything is measured. No other source promises
    anything.

    Args:
        store: its users are measured.
        config: the model, its precision and adapters; the weights are those training begins with.
        who: the users that are drawn, and the price. A seed and a price exclude each other.
        population: the declared number of users; only for ``DP_RELEASE``.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: shows how many passes are done; of a DP release no number, since the number of
            users is private.

    Raises:
        UseError: there are no such users, the model does not fit the store, a number is out of
            range, or an argument of the one kind of source is given for the other.

    Source: Charles et al. 2024, Equation 8 and Appendix F.1 (128 users, the median).
    """
    require_count("users", who.users)
    source, epsilon = who.source, who.epsilon
    grid, computes = power_grid(who.max_group_size), choose_device(device)
    under_dp = source is Provenance.DP_RELEASE
    if {under_dp} != {population is not None, epsilon is not None}:
        raise UseError(
            "a DP release of norms needs a population and an epsilon; other sources take none",
            hint="--set measure.source=dp-release --population 20000 --set measure.users=2000 "
            "--set measure.epsilon=0.2",
        )
    if under_dp and who.seed is not None:
        raise UseError("a DP release takes no seed: its coins must be secret", hint="leave it out")
    split = store.split(Split.HELD_OUT_USERS if source is Provenance.HELD_OUT else Split.TRAIN)
    if not under_dp and not len(split.counts):
        raise UseError(
            f"the store at {store.path} has no users in its split {split.name}",
            hint="prepare it with --held-out-users 0.1, or measure.source=public for one of such",
        )
    # Before anything is charged: a model that does not fit must cost nothing.
    base = load_model(config, store)
    digests = digests_of(base)
    made_for = made_with(config, weights=digests.whole)
    if source is not Provenance.PUBLIC:  # public people are not those of the store that is trained
        made_for = replace(made_for, store=ledger_id(store))
    origin = lineage_of_model(store, base, name=config.model, digests=digests)
    if under_dp and not math.isfinite(origin.guarantee().epsilon) and origin.parts:
        raise UseError(
            f"nothing is claimed of the model {config.model!r}, so that a release has no price",
            hint="measure another model, or other people: measure.source=held-out-users",
        )
    model = choose_trained(base, config).to(computes)
    require_uncoupled(model)
    if population is not None and epsilon is not None:
        require_count("population", population)
        require_informative(
            min(who.users, population), error := rank_error(epsilon=epsilon, names=len(grid))
        )
        library("opendp", extra="queries", what="norms under DP")
        require_rows_apart(model, build_loss(config, model), masked=store.meta.loss_mask)
        subject = f"median gradient norms at G = {', '.join(map(str, grid))}"
        (query_id,) = charge(store, [(subject, epsilon)], of=origin)
        draw = secret_generator()
        # A coin for each user, not a sample of fixed size: whether one is measured depends on no
        # other user.
        chosen = np.flatnonzero(draw.random(len(split.counts)) < min(1.0, who.users / population))
    else:
        if source is not Provenance.PUBLIC:
            StoreLedger(store.path).look("probe")
        draw = np.random.default_rng(who.seed)
        chosen = draw.permutation(len(split.counts))[: who.users]
    of_users, of_examples = torch.zeros(0, len(grid)), torch.zeros(0)
    if len(chosen):
        units = draw_units(split, chosen, most=grid[-1], draw=draw).to(computes)
        shown = Uncounted(progress or Progress()) if under_dp else progress or Progress()
        shown.stage("probe", len(grid) + 1)
        loss = build_loss(config, model)
        of_users, of_examples = probe_norms(model, loss, units, grid, done=shown.at)
    columns = dict(zip(grid, of_users.T, strict=True))
    known: dict[str, Any] = {"model": Path(config.model).name, "source": source}
    if epsilon is not None:
        medians = draw_medians({str(g): one.numpy() for g, one in columns.items()}, epsilon=epsilon)
        norms = {size: medians[str(size)] for size in grid}
        # One example's norm is that of G = 1, so that it costs nothing more.
        known |= {"users": who.users, "example_norm": norms[1], "ledger_line": query_id}
        return GradientNorms(user_norms=norms, rank_error=error, made_for=made_for, **known)
    return GradientNorms(
        users=len(chosen),
        user_norms={size: _median(column) for size, column in columns.items()},
        example_norm=_median(of_examples),
        median_examples_per_user=max(1, int(np.median(split.counts[chosen]))),
        made_for=made_for,
        **known,
    )


def probe_norms(
    model: nn.Module,
    loss: Loss,
    units: Units,
    grid: Sequence[int],
    *,
    done: Callable[[int], None] = lambda passes: None,
) -> tuple[Tensor, Tensor]:
    """Norms of mean gradients over the first min(G, n) rows of each unit, for every G of a grid.

    Args:
        model: in training or evaluation mode; parameters that require a gradient count.
        loss: per row.
        units: the sampled users, each with its examples in random order.
        grid: group sizes.
        done: is called with the number of passes over the units that are done, of one more than
            there are group sizes.

    Returns:
        float64 (units, group sizes), ρ(G) of Equation 8 for each user; and float64 (rows,), the
        norm of each row's own gradient. Neither is finite where a gradient is not. Operator-only.

    Source: Charles et al. 2024, Equation 8.
    """
    sizes = units.offsets.diff()
    rank = torch.arange(len(units.lengths)) - units.offsets[:-1].repeat_interleave(sizes)
    grouped = [(rank < size, sizes.clamp(max=size)) for size in grid]
    grouped.append((rank >= 0, torch.ones_like(rank)))  # each row by itself
    norms = []
    for rows, of_each in grouped:
        part = Units(
            input_ids=units.input_ids[rows],
            lengths=units.lengths[rows],
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), of_each.cumsum(0)]),
            targets=None if units.targets is None else units.targets[rows],
        )
        norms.append(clipped_sum(model, loss, part, l2_clip_norm=1.0).norms.cpu())
        done(len(norms))
    return torch.stack(norms[:-1], dim=1), norms[-1]


def _median(norms: Tensor) -> float:
    """The middle of the finite norms (the mean of both middle ones)."""
    finite = norms[norms.isfinite()]
    if not len(finite):
        raise UseError("no gradient was finite, so that no norm can be planned with")
    return float(finite.quantile(0.5))


def draw_units(
    split: StoreSplit, chosen: NDArray[np.int64], *, most: int, draw: np.random.Generator
) -> Units:
    """These users of a split as units, each with at most ``most`` examples in random order."""
    orders = [draw.permutation(int(count))[:most] for count in split.counts[chosen]]
    sizes = np.array([len(order) for order in orders], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return gather_units(split, np.repeat(chosen, sizes), np.concatenate(orders), offsets)


def power_grid(largest: int) -> tuple[int, ...]:
    """1, 2, 4, … up to ``largest``, and ``largest`` itself.

    >>> power_grid(12)
    (1, 2, 4, 8, 12)
    """
    require_count("max_group_size", largest, at_most=10**6)
    return (*[2**power for power in range(largest.bit_length()) if 2**power < largest], largest)
