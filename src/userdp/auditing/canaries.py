"""One more run of a plan under observation, with canary users of whom a fair coin admits each.

A canary holds random tokens: text like nobody's, whose gradient is long (so that it is clipped to
the full norm) and far from everybody else's. Canaries go through the sampler, the collator, the
gradient engine and the ledger like any user. As many training users are left out of the copy as
there are canaries, so that the extra run costs about as much as the audited one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from userdp.auditing.guesses import CanaryBound, canary_bound, white_box_scores
from userdp.auditing.observer import Directions, Observed, clipped_gradients, watch
from userdp.auditing.repetitions import Repetition, texts_of, write_copy
from userdp.auditing.step_checks import StepAudit, audit_steps
from userdp.core.errors import UseError
from userdp.data.splits import Split
from userdp.data.store_contents import TokenRows
from userdp.data.user_store import UserStore
from userdp.gradients import Units, causal_lm_loss
from userdp.plans import Plan
from userdp.sampling import Sampling
from userdp.sampling.draws import secret_generator
from userdp.training.private_run import PrivateRun
from userdp.training.store_losses import losses_of

_BATCH = 32  # canaries whose losses are measured in one pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """Users who were made up, and the coins that say which of them train.

    Args:
        rows: int64 (canaries, tokens), each one's example.
        included: bool (canaries,), independent fair coins.
    """

    rows: NDArray[np.int64]
    included: NDArray[np.bool_]

    def units(self) -> Units:
        """One unit per canary, one row each."""
        count, length = self.rows.shape
        offsets = np.arange(count + 1)
        return Units.from_flat(self.rows.reshape(-1), length * offsets, offsets)


def make_canaries(store: UserStore, count: int) -> Canaries:
    """``count`` canaries of the length of the store's examples; coins tossed."""
    draw, tokens = secret_generator(), np.arange(store.meta.vocab_size)
    allowed = tokens[tokens != store.meta.end_of_text_id]
    return Canaries(
        rows=draw.choice(allowed, (count, store.meta.seq_len)), included=draw.random(count) < 0.5
    )


def copy_with(store: UserStore, canaries: Canaries, out: Path, *, sampling: Sampling) -> UserStore:
    """The training split of ``store`` less some users, with the canaries that are in, at ``out``.

    Neither who is left out nor how many depends on the coins. If each admitted canary drove a user
    out, a coin would move two users, and guesses could prove more than the mechanism's own ε. The
    held-out splits are not copied. Nothing of ``store`` changes, not even its ledger.

    Args:
        store: the store to copy.
        canaries: made for this store.
        out: a new folder.
        sampling: of the run. A canary holds as many copies of its example as a user's may count:
            more than one under example sampling, where many equal ones are the worst case.

    Raises:
        UseError: too few training users to make room; or the copy, with any number of the canaries,
            would be outside of the sampling's public bounds.
    """
    items, split, (leave, length) = sampling.items, store.split(Split.TRAIN), canaries.rows.shape
    if leave > len(split.counts) // 2:
        raise UseError(
            f"{leave} canaries would take the place of more than half of the training users: the "
            "run would be another one",
            hint="give fewer --canaries",
        )
    kept = np.sort(secret_generator().permutation(len(split.counts))[leave:])
    for included in (0, leave):  # whatever the coins say: who asks again would choose among them
        sampling.require_store(np.append(split.counts[kept], [items] * included))
    offsets = length * np.arange(items + 1)
    counted = np.ones(items * length, dtype=np.bool_) if store.meta.loss_mask else None
    made = (
        (b"canary%09d" % one, TokenRows(np.tile(canaries.rows[one], items), offsets, counted))
        for one in np.flatnonzero(canaries.included)
    )
    people = (texts_of(split, user, np.arange(split.counts[user])) for user in kept.tolist())
    return write_copy(store, chain(made, people), out)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtraRun:
    """The results of one observed run. Operator-only.

    Args:
        bound: the lower bound on ε that the canaries prove.
        steps: the white-box checks.
        canaries: how many were made up.
        included: how many of them trained.
        seconds: duration of the extra run, copy and scores included.
        false_alarm: at most the probability that this contradicts the claim of a right run: a
            union bound over the step checks, the bound that the steps prove, and the canaries'.
    """

    bound: CanaryBound
    steps: StepAudit
    canaries: int
    included: int
    seconds: float
    false_alarm: float

    @property
    def epsilon_lower(self) -> float:
        """The greater of the two bounds."""
        return max(self.bound.epsilon_lower, self.steps.epsilon_lower)


def extra_run(
    of: Repetition, plan: Plan, *, canaries: int = 128, confidence: float = 0.95
) -> ExtraRun:
    """Train once more by ``plan`` with canaries among the users, and judge the observations.

    The run is a real one (ledger, sampler, engine, noise) on a copy of the store. The copy and the
    run's model are deleted at the end. The store is not charged: nothing of the run is released,
    and the result is operator-only.

    Args:
        of: the audited run.
        plan: of the audited run.
        canaries: how many are made up.
        confidence: of the canaries' bound.

    Raises:
        UseError: the store is too small for so many canaries, or training refuses.

    Source: Steinke et al. 2023, Algorithm 1, with users in place of examples.
    """
    begin, made = time.monotonic(), make_canaries(of.store, canaries)
    units = made.units()
    opened: list[tuple[nn.Module, NDArray[np.float64], Directions, Observed]] = []

    def watched(run: PrivateRun, model: nn.Module) -> None:
        directions = Directions(clipped_gradients(run, units), count=canaries)
        opened.append((model, _losses(model, units), directions, watch(run, directions)))

    with of.scratch() as work:
        copy = copy_with(of.store, made, work / "store", sampling=plan.sampling)
        of.train(copy, work / "run", progress=of.progress, watched=watched)
    ((model, before, directions, seen),) = opened
    scores = {
        "white box": white_box_scores(np.stack(seen.answers), directions.gram(), plan),
        "black box": before - _losses(model, units),
    }
    delta, worst = plan.budget.target_delta, float(directions.norms.max())
    steps = audit_steps(seen, plan, worst_move=worst / plan.clip.l2_norm)
    return ExtraRun(
        bound=canary_bound(scores, made.included, delta=delta, confidence=confidence),
        steps=steps,
        canaries=canaries,
        included=int(made.included.sum()),
        seconds=time.monotonic() - begin,
        false_alarm=min(1.0, steps.false_alarm + (1 - confidence)),
    )


@torch.no_grad()
def _losses(model: nn.Module, units: Units) -> NDArray[np.float64]:
    """float64 (canaries,): each canary's loss; the model in evaluation mode."""
    on_device, was_training = units.to(next(model.parameters()).device), model.training
    model.eval()
    parts = [slice(begin, begin + _BATCH) for begin in range(0, len(units), _BATCH)]
    losses = torch.cat([losses_of(causal_lm_loss, model, on_device, part) for part in parts])
    model.train(was_training)
    return np.asarray(losses.double().cpu().numpy())
