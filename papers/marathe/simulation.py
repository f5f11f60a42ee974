"""Federations of Marathe et al. 2023 on made-up digits, simulated in memory under each accounting.

The plans (rounds, noise, denominators, caps) are those of `FederationPlan` and `Published`. A round
is one step of all silos from the same weights, so that one pass gives every item's gradient; what
a silo adds up is held against the reference engine by a test. There is no store and no ledger, and
draws and noise come from a seed: **no ε is claimed**, and only made-up data may be used.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from papers.marathe.bounds import excess_loss_bound
from papers.marathe.federations import (
    NONE,
    REDUCTIONS,
    TIGHT,
    Federation,
    Size,
    federation,
    is_capped,
    plan_of,
)
from papers.marathe.published import HIGRADAVG, USER_LDP, Published, flaws_of
from papers.table import Row
from userdp.federated.models import build_model, image_loss
from userdp.federated.plan import FederationPlan
from userdp.plans import Plan
from userdp.sampling.coins import Indices


def item_gradients(model: nn.Module, rows: Tensor) -> Tensor:
    """Each item's gradient, float32, (items, parameters), in the order of the model's parameters.

    One pass back gives the gradient of every layer's output; an item's weight gradient is that
    times the layer's input, unfolded where the layer is a convolution.
    """
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]

    def note(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        inputs.append(given[0].detach())
        outputs.append(made)

    hooks = [layer.register_forward_hook(note) for layer in layers]
    loss = image_loss(model, rows, torch.full((len(rows),), rows.shape[1])).sum()
    for hook in hooks:
        hook.remove()
    parts = []
    for layer, x, back in zip(layers, inputs, torch.autograd.grad(loss, outputs), strict=True):
        if isinstance(layer, nn.Conv2d):
            x = nn.functional.unfold(x, layer.kernel_size, padding=layer.padding)  # type: ignore[arg-type]
            back = back.flatten(2)
        else:
            x, back = x[:, :, None], back[:, :, None]
        parts += [torch.einsum("nol,nkl->nok", back, x).flatten(1), back.sum(2)]
    return torch.cat(parts, dim=1)


def clipped(gradients: Tensor, norm: float) -> Tensor:
    """Rows scaled to a norm of at most ``norm``."""
    factors: Tensor = (norm / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return gradients * factors


def silo_sum(gradients: Tensor, subjects: Indices, *, algorithm: str, norm: float) -> Tensor:
    """What a silo's step adds up before its noise, from the gradients of its drawn items.

    HiGradAvgDP: of each subject the mean of its clipped gradients. UserLDP: the clipped mean of
    all. Others: clipped gradients.
    """
    if not len(gradients):
        return torch.zeros(gradients.shape[1])
    if algorithm == USER_LDP:
        return clipped(gradients.mean(0, keepdim=True), norm)[0]
    own = clipped(gradients, norm)
    if algorithm == HIGRADAVG:
        _, where, counts = np.unique(subjects, return_inverse=True, return_counts=True)
        own = own / torch.from_numpy(counts[where])[:, None]
    return own.sum(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterRound:
    """What a test finds after a round.

    Args:
        round: from 1.
        accuracy: on all silos' held-out items.
        loss: their mean cross-entropy.
        moved: the norm of the change of all weights so far.
    """

    round: int
    accuracy: float
    loss: float
    moved: float


def train(
    made: FederationPlan | Published,
    data: Federation,
    *,
    batch: int,
    rate: float,
    seed: int,
    on_round: Callable[[AfterRound], None] | None = None,
) -> AfterRound:
    """All rounds; what is found after the last one.

    Args:
        made: the plan of a cell.
        data: of a seed, without a cap.
        batch: items of a mini-batch where no law of a plan draws them.
        rate: of learning.
        seed: of the first weights; and, with the cell's name, of draws and noise.
        on_round: is told of every round, at the cost of a test.
    """
    published = made if isinstance(made, Published) else None
    plan = made.plan if isinstance(made, Published) else made
    local = plan.local if isinstance(plan.local, Plan) else None
    if local and is_capped(plan.algorithm, NONE if published else TIGHT):
        data = data.capped(local.sampling.group_size)
    model, _ = build_model(replace(plan.model, seed=seed))
    start = _flat(model)
    # Each cell of a seed has draws and noise of its own: a difference of cells must scatter as two
    # independent runs do.
    cell = int.from_bytes(
        hashlib.sha256(f"{plan.algorithm} {bool(published)}".encode()).digest()[:4]
    )
    draw = np.random.default_rng([seed, 2, cell, plan.rounds])
    noise = torch.Generator().manual_seed(int(draw.integers(2**62)))
    of_silo = [np.flatnonzero(data.silos == silo) for silo in range(plan.silos)]
    for number in range(1, plan.rounds + 1):
        drawn = []
        for own in of_silo:
            if local and not published:  # Poisson, as `TIGHT` accounts for it
                drawn.append(own[draw.random(len(own)) < local.sampling.chance(1)])
            else:
                drawn.append(draw.choice(own, min(batch, len(own)), replace=False))
        everything = np.concatenate(drawn)
        gradients = item_gradients(model, data.rows[torch.from_numpy(everything)])
        total, begin = torch.zeros(gradients.shape[1]), 0
        for mine in drawn:
            part = gradients[begin : begin + len(mine)]
            begin += len(mine)
            if local is None:
                total += part.mean(0)
                continue
            subjects, norm = data.subjects[mine], local.clip.l2_norm
            counts = np.unique(subjects, return_counts=True)[1]
            summed = silo_sum(part, subjects, algorithm=plan.algorithm, norm=norm)
            std = (published.noise_of(counts) if published else local.noise.multiplier) * norm
            summed = summed + std * torch.randn(summed.shape, generator=noise)
            total += summed / (published.denominator_of(counts) if published else local.denominator)
        change, at = rate * total / plan.silos, 0
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(change[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
        if on_round is not None and number < plan.rounds:
            on_round(_tested(model, data, start, number))
    last = _tested(model, data, start, plan.rounds)
    if on_round is not None:
        on_round(last)
    return last


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _tested(model: nn.Module, data: Federation, start: Tensor, number: int) -> AfterRound:
    with torch.no_grad():
        logits, classes = model(data.held_out), data.held_out[:, 0]
        return AfterRound(
            round=number,
            accuracy=float((logits.argmax(1) == classes).float().mean()),
            loss=float(nn.functional.cross_entropy(logits, classes)),
            moved=float((_flat(model) - start).norm()),
        )


def curve(
    size: Size,
    *,
    algorithm: str,
    accounting: str,
    alpha: float | None,
    rate: float,
    seed: int,
    every: bool,
) -> list[Row]:
    """The rows of a figure for one run: after each round, or only after the last one."""
    data = federation(size, seed, alpha)
    made = plan_of(size, algorithm, accounting, alpha, int(data.group_sizes.max()))
    plan = made.plan if isinstance(made, Published) else made
    local = plan.local if isinstance(plan.local, Plan) else None
    parameters = _flat(build_model(plan.model)[0]).numel()
    rows: list[Row] = []

    def note(after: AfterRound) -> None:
        bound = excess_loss_bound(
            radius=after.moved,
            lipschitz=size.clip_norm,
            learning_rate=rate,
            steps=after.round,
            dimensions=parameters,
            items=len(data.rows),
            noise_std=local.noise_std / local.denominator / math.sqrt(size.silos) if local else 0.0,
            group_size=local.sampling.group_size if local and algorithm == HIGRADAVG else 1,
        )
        rows.append(
            {
                "alpha": alpha or 1.0,
                "algorithm": algorithm,
                "accounting": accounting,
                "seed": seed,
                "round": after.round,
                "accuracy": after.accuracy,
                "loss": after.loss,
                "excess_loss_bound": bound,
                "noise_multiplier": local.noise.multiplier if local else 0.0,
                "rounds": plan.rounds,
                "planned_rounds": size.planned_rounds,
                "flaws": flaws_of(algorithm, REDUCTIONS[accounting])
                if accounting in REDUCTIONS
                else "",
            }
        )

    last = train(
        made, data, batch=size.batch, rate=rate, seed=seed, on_round=note if every else None
    )
    if not every:
        note(last)
    return rows
