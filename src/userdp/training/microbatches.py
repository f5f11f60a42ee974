"""One step's clipped sum by micro-batches: the next one is gathered while this one is clipped.

What is worked ahead is the *gathering* of the present draw. The draw itself waits until the step
stands in the ledger, so that invariant 7 ("written before its data is read") stays word for word,
and a stop leaves no cohort that was drawn and not charged. (Drawing the next cohort ahead would
cost no privacy either, as draws are independent, secret and thrown away unused; but it would hide
only the first micro-batch's gathering more.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from userdp.data.ahead import ahead
from userdp.gradients import ClippedSum, Units
from userdp.plans import Plan
from userdp.sampling.cohort import Cohort

PASSES_AHEAD = 128
"""Passes of an engine in what is gathered at once. Units of each shape fill passes of their own
(`userdp.gradients.engines.passes`), and the last one of each has empty places."""

_FILLED = 8
"""Passes that a step's expected rows fill at least: of a few users, some are alike."""


def rows_for(plan: Plan, micro_batch: int, *, processes: int) -> int:
    """Rows of a pass: ``micro_batch``, or fewer where the plan expects so few that none is filled.

    Public: nothing is asked but the plan.

    Args:
        plan: whose steps are taken.
        micro_batch: most rows of a pass.
        processes: that share a step.
    """
    of_a_unit = plan.sampling.group_size if plan.sampling.by_user else 1
    expected = plan.denominator * of_a_unit / processes
    return min(micro_batch, max(of_a_unit, math.ceil(expected / _FILLED)))


def sum_of_microbatches(
    microbatches: Sequence[Cohort],
    gather: Callable[[Cohort], Units],
    clip: Callable[[Units], ClippedSum],
) -> tuple[ClippedSum, int]:
    """The clipped sum over all micro-batches, and its number of rows.

    Guarantee: each micro-batch is gathered once, in order, by one thread at a time, and clipped
    here; a unit lies in one micro-batch whole, so the sum has the sensitivity of its parts. At most
    three micro-batches of rows are held at once. An error of ``gather`` is raised here.

    Args:
        microbatches: of one cohort, whole units each; at least one.
        gather: from a micro-batch to its rows; may run in another thread.
        clip: the gradient engine.
    """
    if len(microbatches) == 1:  # no thread is worth its while
        units = gather(microbatches[0])
        return clip(units), len(units.lengths)
    gathered = ahead(gather, microbatches)
    _, units = next(gathered)
    total, rows = clip(units), len(units.lengths)
    for _, units in gathered:
        total.append(clip(units))
        rows += len(units.lengths)
    return total, rows
