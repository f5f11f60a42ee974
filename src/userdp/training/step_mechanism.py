"""One private step: draw a cohort, clip, add noise; and what it hands to the loop."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from userdp.core.errors import FailureError, UseError
from userdp.core.vocabulary import require_count
from userdp.gradients import (
    ClippedSum,
    ClipRule,
    Units,
    get_engine,
    trainable_parameters,
)
from userdp.gradients.engines import sharded
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.noise import noisy_count
from userdp.gradients.shards import is_sharded, like, sharded_parts
from userdp.ledger import StoreLedger
from userdp.plans import Plan, StepRecord
from userdp.sampling.draws import Sampler, secret_generator
from userdp.training.collate import Collator
from userdp.training.devices import machine_facts
from userdp.training.distributed import Dealing, World, shared_secret, source_for
from userdp.training.open_run import Training

_FILLED = 8
"""Fewest passes that a step's expected rows are made to fill: of so many, some are alike."""
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step whose gradients now stand in ``.grad``.

    Args:
        number: of this step, from 1; in a private run the attempts charged so far.
        operator: exact numbers about private data, for operator.jsonl and nothing else; of a run
            that keeps none empty, see `make_private`.
        noise_std: of the noise in each number of ``.grad``; a public constant, 0 without privacy.
        l2_norm: of ``.grad`` without its noise, if all expected units pulled in one direction as
            far as the clip lets them; a public constant.
    """

    number: int
    operator: dict[str, Any]
    noise_std: float = 0.0
    l2_norm: float = 1.0


class NoExactLog(dict[str, Any]):
    """The exact numbers of a run that keeps none: empty, and each says by its name why."""

    def __missing__(self, name: str) -> Any:
        raise UseError(
            f"this run keeps no exact numbers, so that step.operator has no {name!r}: what a loop "
            "makes of one (a rate by the loss, the best weights by it) no epsilon covers",
            hint="PrivateOptions(exact_log=True) shows them, and makes the claim conditional",
        )


class StepMechanism:
    """The mechanism that a plan prices: draw, clip, add noise, divide by the public denominator.

    Guarantee (invariants 1 to 5): sampler, clip, noise and denominator are those of one `Plan`, and
    nothing else decides them; every step draws afresh. `record` describes the step that `take`
    takes next, and the caller charges that record first.

    Args:
        of: the training, of which the model is at the weights that it begins with.

    Attributes:
        l2_clip_norm: of the next step, and ``noise_std``, the deviation of its noise; both move
            where the plan adapts the clip.
        micro_batch: most rows in one pass; fewer than asked for where the plan expects so few that
            they would not fill passes. Public: a function of the plan and the number of processes.
        rows_of_a_unit: most rows of a unit.

    Raises:
        UseError: the sampling needs another number of units than the store has. That tells an exact
            fact about people's text, so it is noted as a look.
    """

    def __init__(self, of: Training, plan: Plan) -> None:
        self.plan, self.world, self.device = plan, World(), device_of(of.model)
        self._of, self._seeds = of, of.options.unsafe_seeds
        self.collator = Collator(of.store, plan, of.options)
        try:
            plan.sampling.require_store(self.collator.counts)
        except UseError:
            self.world.on_rank_zero(lambda: StoreLedger(of.store.path).look("train"))
            raise
        seeds, world = self._seeds, self.world
        secret = shared_secret(world) if seeds.draws is None else seeds.draws
        self.sampler = Sampler(plan.sampling, self.collator.counts, secret_generator(secret))
        self.dealing = Dealing(world, self.collator.tokens)
        self.noise = source_for(world, of.model, unsafe_noise_seed=seeds.noise)
        self.rows_of_a_unit = plan.sampling.group_size if plan.sampling.by_user else 1
        expected = plan.denominator * self.rows_of_a_unit / world.size
        fewest = max(self.rows_of_a_unit, math.ceil(expected / _FILLED))
        self.micro_batch = min(require_count("micro_batch", of.options.micro_batch), fewest)
        self.sharded = bool(sharded_parts(of.model))
        self.engine = sharded.clipped_sum if self.sharded else get_engine(of.options.engine)
        self.scattered = any(map(is_sharded, trainable_parameters(of.model).values()))
        self.count_noise_std = plan.count_noise_std
        self.clip_at(plan.clip.l2_norm)

    @property
    def identity(self) -> dict[str, str]:
        """Digests and words that a resumed run must share."""
        parameters = trainable_parameters(self._of.model).items()
        shapes = "\n".join(f"{name} {tuple(p.shape)} {p.dtype}" for name, p in parameters)
        return {
            "model": hashlib.sha256(shapes.encode()).hexdigest(),
            "kind of seeds": "unsafe" if self._seeds else "secret",
            "selection": self.collator.in_words,
        }

    def require_same_processes(self, facts: Mapping[str, str]) -> None:
        """`UseError` unless all processes are about to do the same."""
        machine = machine_facts(self.device)
        self.world.require_same(
            {
                **facts,
                # A unit's gradient must not depend on who computes it, to the last bit.
                "kind of processor": f"{machine['device']}, torch {machine['torch']}",
                "number of threads": str(machine["threads"]),
            }
        )

    def clip_at(self, l2_clip_norm: float) -> None:
        """Clip at this norm from the next step on, with the noise that the plan has for it."""
        self.l2_clip_norm = l2_clip_norm
        self.noise_std = self.plan.noise_std_at(l2_clip_norm)

    def record(self) -> StepRecord:
        """The next step, as the ledger records it."""
        return StepRecord(
            sampling=self.sampler.sampling,
            l2_clip_norm=self.l2_clip_norm,
            noise_std=self.noise_std,
            noise_sampler=self.noise.sampler_on(self.device),
            count_noise_std=self.count_noise_std,
        )

    def take(self, number: int) -> Step:
        """Take step ``number``, which is charged; the noisy gradient is in ``.grad`` afterwards.

        Raises:
            FailureError: the processes drew different cohorts, or the engine is not as sensitive as
                the noise is made for; nothing is in ``.grad`` then.
        """
        begin = time.monotonic()
        mine = self.dealing.mine(self.sampler.draw())
        # Dropout masks are secret, and this process has its own. Afterwards the caller's generators
        # are as they were before the step.
        seed = self._seeds.noise
        key = None if seed is None else f"{seed}/process {self.world.rank}/step {number}"
        with secret_randomness(key):
            units = self.collator(mine).to(self.device)
            summed = self.engine(self._of.model, self._of.loss, units, **self.clipping())
        summed, rows = self.dealing.together(summed, len(units.lengths), scattered=self.scattered)
        if not summed.sensitivity <= self.l2_clip_norm:
            raise FailureError(
                f"the engine's sensitivity is {summed.sensitivity}, the step's l2_clip_norm "
                f"{self.l2_clip_norm}: too little noise, so training stopped before this update"
            )
        self.noise.add_(summed.value, self.noise_std)
        denominator = self.plan.denominator
        if self.plan.clip.divided:
            denominator *= self.l2_clip_norm
        set_gradients(self._of.model, summed.value, denominator=denominator)
        facts = operator_facts(summed, l2_clip_norm=self.l2_clip_norm)
        step = Step(
            number=number,
            operator={**facts, "rows": rows, "seconds": round(time.monotonic() - begin, 4)},
            noise_std=self.noise_std / denominator,
            l2_norm=self.l2_clip_norm * self.plan.denominator / denominator,
        )
        self._adapt(summed)
        return step

    def clip(self, units: Units) -> ClippedSum:
        """The clipped sum of these units as the next step would form it, without noise."""
        of = self._of
        return self.engine(of.model, of.loss, units.to(self.device), **self.clipping())

    def clipping(self) -> dict[str, Any]:
        """The engine's arguments in the next step."""
        clip = self.plan.clip
        return {
            "l2_clip_norm": self.l2_clip_norm,
            "item_clip_norm": clip.item_norm,
            "micro_batch": self.micro_batch,
            "rule": ClipRule(form=clip.form, stability=clip.stability, layer_split=clip.split),
            "parts": self.world.size,
        }

    def _adapt(self, summed: ClippedSum) -> None:
        """Release the count of unclipped units, and set the next step's clip norm by it."""
        adaptation, norm, std = self.plan.clip.adaptation, self.l2_clip_norm, self.count_noise_std
        if adaptation is None or std is None:
            return
        count = noisy_count(summed.norms, l2_clip_norm=norm, count_noise_std=std, noise=self.noise)
        following = adaptation.next_clip_norm(
            l2_clip_norm=norm,
            noisy_count=count,
            denominator=self.plan.denominator,
            start=self.plan.clip.l2_norm,
        )
        self.clip_at(following)


def operator_facts(summed: ClippedSum, *, l2_clip_norm: float) -> dict[str, Any]:
    """Exact numbers of a private step, which no ε covers, for the operator."""
    finite = summed.norms[summed.norms.isfinite()]
    losses = summed.losses[summed.losses.isfinite()]
    return {
        "units": len(summed.norms),
        "loss": float(losses.mean()) if len(losses) else None,
        "norm_quantiles": {str(q): float(finite.quantile(q)) for q in _QUANTILES if len(finite)},
        "clipped_fraction": float((finite > l2_clip_norm).double().mean()) if len(finite) else None,
        "non_finite": summed.non_finite,
        "failed": summed.failed,
        "halvings": summed.halvings,
    }


def set_gradients(model: nn.Module, value: Mapping[str, Tensor], *, denominator: float) -> None:
    """Put ``value / denominator`` into each trainable parameter's ``.grad``, in its dtype.

    Args:
        model: whose gradients are set.
        value: the noisy sum by parameter name.
        denominator: a public constant (invariant 4).
    """
    for name, parameter in trainable_parameters(model).items():
        parameter.grad = like(parameter, (value[name] / denominator).to(parameter.dtype))


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's trainable parameters."""
    return next(iter(trainable_parameters(model).values())).device
