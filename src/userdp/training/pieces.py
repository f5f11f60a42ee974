"""One step's clipped sum in pieces: the next piece is gathered while this one is clipped.

What is worked ahead is the *gathering* of the present draw. The draw itself waits until the step
stands in the ledger, so that invariant 7 ("written before its data is read") stays word for word,
and a stop leaves no cohort that was drawn and not charged. (Drawing the next cohort ahead would
cost no privacy either, as draws are independent, secret and thrown away unused; but it would hide
only the first piece's gathering more.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from userdp.data.prefetch import Prefetch
from userdp.gradients import ClippedSum, Units
from userdp.sampling.cohort import Cohort

PASSES_AHEAD = 16
"""Passes of ``micro_batch`` rows in a piece: a cut in front of a whole unit then costs little."""


def sum_in_pieces(
    pieces: Sequence[Cohort],
    gather: Callable[[Cohort], Units],
    clip: Callable[[Units], ClippedSum],
) -> tuple[ClippedSum, int]:
    """The clipped sum over all pieces, and its number of rows.

    Guarantee: each piece is gathered once, in order, by one thread at a time, and clipped here; a
    unit lies in one piece whole, so the sum has the sensitivity of its pieces. At most three
    pieces of rows are held at once. An error of ``gather`` is raised here.

    Args:
        pieces: of one cohort, whole units each; at least one.
        gather: from a piece to its rows; may run in another thread.
        clip: the gradient engine.
    """
    waiting = iter(pieces)

    def following() -> Units:
        return gather(next(waiting))

    with ExitStack() as stack:
        take = following
        if len(pieces) > 1:  # a thread is worth its while
            take = stack.enter_context(Prefetch(following, depth=1)).next
        units = take()
        total, rows = clip(units), len(units.lengths)
        for _ in pieces[1:]:
            units = take()
            total, rows = _added(total, clip(units)), rows + len(units.lengths)
    return total, rows


def _added(total: ClippedSum, more: ClippedSum) -> ClippedSum:
    """Both sums as one; ``total``'s tensors are reused."""
    for name, value in total.value.items():
        value += more.value[name]
    return replace(
        total,
        norms=torch.cat([total.norms, more.norms]),
        losses=torch.cat([total.losses, more.losses]),
        non_finite=total.non_finite + more.non_finite,
        sensitivity=max(total.sensitivity, more.sensitivity),
    )
