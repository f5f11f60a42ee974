"""Canary users, and a copy of a store in which each of them is in or out by a fair coin.

*Gradient* canaries hold random tokens: text like nobody's, whose gradient is long (so that it is
clipped to the full norm) and far from everybody else's. *Text* canaries hold a held-out user's own
example: natural text that nothing was trained on. They go through the sampler, the collator, the
gradient engine and the ledger like anybody.

So that the extra run costs no more than the run it audits, training users are left out of the copy
for the canaries that come in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from userdp.auditing.copies import copy_user, write_user, writer_like
from userdp.data.records import Tally
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.sampling.coins import secret_generator


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """Users who were made up, and whether each is in.

    Args:
        rows: each canary's example, int64 tokens.
        included: bool (canaries,), independent fair coins.
        natural: bool (canaries,), text canaries; the others are gradient canaries.
        copies: how often a canary's example stands in its part of the store: more than once under
            example sampling, where a user of many equal examples is the worst case.
    """

    rows: tuple[NDArray[np.int64], ...]
    included: NDArray[np.bool_]
    natural: NDArray[np.bool_]
    copies: int

    def units(self) -> Units:
        """One unit per canary, one row each."""
        flat = np.concatenate(self.rows)
        offsets = np.cumsum([0, *map(len, self.rows)])
        return Units.from_flat(flat, offsets, np.arange(len(self.rows) + 1))


def make_canaries(
    store: UserStore, plan: Plan, *, count: int, unsafe_seed: int | None = None
) -> Canaries:
    """``count`` canaries: half of them natural text, as far as held-out users go; coins tossed."""
    draw = secret_generator(unsafe_seed)
    held_out = store.split(Split.HELD_OUT_USERS)
    natural = min(count // 2, len(held_out.counts))
    people = draw.permutation(len(held_out.counts))[:natural]
    length = store.meta.seq_len
    tokens = np.arange(store.meta.vocab_size)
    allowed = tokens[tokens != store.meta.end_of_text_id]
    rows = [held_out.gather([user], [0]).row(0).astype(np.int64) for user in people]
    rows += [draw.choice(allowed, length) for _ in range(count - natural)]
    order = draw.permutation(count)
    return Canaries(
        rows=tuple(rows[k] for k in order),
        included=draw.random(count) < 0.5,
        natural=order < natural,
        copies=plan.sampling.items,
    )


def copy_with(
    store: UserStore,
    canaries: Canaries,
    out: Path,
    plan: Plan,
    *,
    unsafe_seed: int | None = None,
) -> tuple[UserStore, int]:
    """The training split of ``store`` less some users, with the canaries that are in, at ``out``.

    The held-out splits are left behind. Nothing of ``store`` changes, its ledger included.

    Returns:
        The copy, and how many training users were left out of it.

    Raises:
        UseError: too few training users to make room.
    """
    split = store.split(Split.TRAIN)
    draw = secret_generator(None if unsafe_seed is None else unsafe_seed + 1)
    order = draw.permutation(len(split.counts))
    leave = _make_room(split.counts[order], canaries, plan)
    if leave > len(order) // 2:
        raise UseError(
            f"{len(canaries.rows)} canaries would take the place of more than half of the training "
            "users: the run would be another one",
            hint="give fewer --canaries",
        )
    kept = np.sort(order[leave:])
    tally = Tally()
    with writer_like(store, out) as writer:
        for number in np.flatnonzero(canaries.included):
            tokens = np.tile(canaries.rows[number], canaries.copies)
            lengths = np.full(canaries.copies, len(canaries.rows[number]), dtype=np.int64)
            targets = np.ones_like(tokens) if store.meta.loss_mask else None
            write_user(writer, b"canary%09d" % number, tokens, lengths, targets, tally)
        for user in kept.tolist():
            copy_user(writer, split, user, np.arange(split.counts[user]), tally)
        writer.finish(source={"kind": "audit", "public": False}, tally=tally)
    return UserStore.open(out), leave


def _make_room(counts: NDArray[np.int64], canaries: Canaries, plan: Plan) -> int:
    """How many users to leave out, so that the audit's gradients are no more than the run's.

    The canaries that are in are drawn as often as anybody; and each canary's gradient is computed
    once by itself, with a few more to see the sensitivity.

    The number must not depend on the coins: if each canary that comes in drove a user out, a coin
    would move two users, and guesses could prove more than the mechanism's own ε.
    """
    cost = np.minimum(counts, plan.sampling.items)
    canary_count = len(canaries.rows)
    most_in = canary_count / 2 + math.sqrt(canary_count)  # in 97% of all tosses
    looked_at = (canary_count + 32) / (plan.steps * plan.sampling.chance(plan.population))
    needed = math.ceil(most_in * canaries.copies + looked_at)
    return int(np.searchsorted(np.cumsum(cost), needed) + 1)
