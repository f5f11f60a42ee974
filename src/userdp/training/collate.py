"""From indices to token rows: what a `Cohort` says, read from the store, as `Units`."""

from __future__ import annotations

from userdp.cohorts import Cohort
from userdp.data.selection import FixedSelection, fixed_selection
from userdp.data.store import StoreSplit
from userdp.gradients import Units
from userdp.guarantees import Sampling
from userdp.plan import Plan


class Collator:
    """Gathers a cohort's rows.

    Guarantee (invariant 11): which examples a user's ranks stand for depends on that user's
    number of examples and hash alone, and stays the same for the whole run.

    Args:
        split: where the rows are.
        plan: under ELS a cohort names ranks below ``group_size`` (Charles et al. 2024, Algorithm
            1: each user's examples are capped once), under ULS the examples themselves.
    """

    def __init__(self, split: StoreSplit, plan: Plan) -> None:
        self._split = split
        self._selection: FixedSelection | None = None
        if plan.sampling is Sampling.EXAMPLES:
            _, self._selection = fixed_selection(split, plan.group_size)

    def __call__(self, cohort: Cohort) -> Units:
        """The cohort's rows, one unit per drawn user (ULS) or example (ELS)."""
        examples = cohort.examples
        if self._selection is not None:
            examples = self._selection.map(cohort.users, examples)
        rows = self._split.gather(cohort.users, examples)
        return Units.from_flat(rows.tokens, rows.offsets, cohort.offsets, rows.targets)
