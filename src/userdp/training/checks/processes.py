"""Invariants 3 and 5 on several processes: one model, one cohort, one sum, and noise once.

A made-up cohort goes the way of a step's: every process draws it, takes its part, clips it, the
parts are added up, and noise is added to the sum. What comes out, less the sum that one process
computes, must be noise of the plan's deviation, the same on every process that holds all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.gradients import Units
from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.shards import is_sharded
from userdp.sampling.cohort import Cohort
from userdp.training.checks import surprise
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.noise_drawn import pieces
from userdp.training.checks.subject import Subject
from userdp.training.distributed_run import Dealing


def _measure(subject: Subject) -> Iterator[Measured]:
    world = subject.world
    if world.size == 1:
        return
    whole = {n: p for n, p in subject.model.named_parameters() if not is_sharded(p)}
    digests = world.all_gather_object({name: _digest(p) for name, p in whole.items()})
    different = [name for name in whole if len({digest[name] for digest in digests}) > 1]
    yield Measured(
        what=f"parameters that differ between processes ({', '.join(different[:3]) or 'none'})",
        value=float(len(different)),
        bound=0,
    )
    bound = None if different else subject.biting
    if bound is None:
        return
    with evaluating(subject.model):
        alone = subject.sum_of(subject.units, bound)
        dealing = Dealing(world, lambda cohort: _tokens(subject.units, cohort))
        mine = dealing.mine(_cohort(subject.units))
        summed = subject.engine(
            subject.model,
            subject.loss,
            _part(subject.units, np.unique(mine.users)),
            l2_clip_norm=bound,
            item_clip_norm=subject.clip.item_norm,
            micro_batch=subject.micro_batch,
            rule=subject.rule,
        )
    together, _ = dealing.together(summed, len(mine.users), scattered=subject.scattered)
    yield Measured(
        what="how far the number of units that the processes clipped is from all",
        value=float(abs(len(together.norms) - len(subject))),
        bound=0,
    )
    source, value = subject.noise(), together.value
    if not subject.scattered:
        world.shares_to_all(value)
    norm = sum(subject.squared(alone.value).values()) ** 0.5
    apart = alone.value
    for name, v in value.items():
        apart[name].sub_(v.cpu())  # in place: large models have no room for another
    yield Measured(
        what="how far the sum of all processes is from one process's, relative",
        value=sum(subject.squared(apart).values()) ** 0.5 / max(norm, 1e-30),
        bound=subject.close,
    )
    clean = {name: v.clone() for name, v in value.items()}
    source.add_(value, subject.noise_std)
    if not subject.scattered:
        noisy = world.all_gather_object({name: _digest(v) for name, v in value.items()})
        yield Measured(
            what="processes whose noisy sum differs from process 0's",
            value=float(sum(one != noisy[0] for one in noisy)),
            bound=0,
        )
    noise = {name: v - clean[name] for name, v in value.items()}
    found = {piece: one / subject.noise_std for piece, one in pieces(subject, noise).items()}
    if subject.in_shares:
        yield Measured(
            what="numbers that are in no process's share, so that nobody draws their noise",
            value=float(sum(one.size for piece, one in found.items() if piece.owner is None)),
            bound=0,
        )
    for owner in sorted({piece.owner for piece in found if piece.owner is not None}):
        own = np.concatenate([one for piece, one in found.items() if piece.owner == owner])
        yield Measured(
            what=f"how surprising the deviation of the noise in the share of process {owner} is, "
            "in nats",
            value=surprise.of_squares(own),
            bound=surprise.MOST,
        )
    yield Measured(
        what="how surprising the deviation of the noise in the sum of all processes is, in nats",
        value=surprise.of_squares(np.concatenate(list(found.values()))),
        bound=surprise.MOST,
    )


def _digest(tensor: Tensor) -> str:
    held = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu()
    return hashlib.sha256(held.numpy().tobytes()).hexdigest()


def _cohort(units: Units) -> Cohort:
    """The made-up units, each as a user of its own number."""
    counts = units.offsets.diff().numpy()
    users = np.repeat(np.arange(len(units)), counts)
    examples = np.concatenate([np.arange(count) for count in counts])
    return Cohort(users=users, examples=examples, offsets=units.offsets.numpy())


def _tokens(units: Units, cohort: Cohort) -> NDArray[np.int64]:
    """Tokens of each unit of the cohort of all made-up units."""
    ends = np.concatenate([[0], np.cumsum(units.lengths.cpu().numpy())])
    return np.diff(ends[cohort.offsets]).astype(np.int64)


def _part(units: Units, kept: NDArray[np.int64]) -> Units:
    """Some of the units, by number."""
    chosen = np.isin(np.arange(len(units)), kept)
    counts = units.offsets.diff()
    rows = torch.from_numpy(chosen).repeat_interleave(counts).to(units.lengths.device)
    ends = counts[torch.from_numpy(chosen)].cumsum(0)
    return Units(
        input_ids=units.input_ids[rows],
        lengths=units.lengths[rows],
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), ends]),
        targets=None if units.targets is None else units.targets[rows],
    )


CHECK = Check(
    name="processes",
    invariant=5,
    claim="the processes hold one model, clip one cohort between them, and noise its sum once",
    measure=_measure,
)
