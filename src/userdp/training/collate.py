"""From a `Cohort`, which is indices, to its token rows in the store, as `Units`."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from userdp.data.selection import FixedSelection
from userdp.data.selections import RankedSelection, Selector, build_selector, select_once
from userdp.data.store import StoreSplit
from userdp.data.strategy import Strategy
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.sampling.cohort import Cohort
from userdp.sampling.coins import secret_generator


def gather_units(
    split: StoreSplit,
    users: NDArray[np.int64],
    examples: NDArray[np.int64],
    offsets: NDArray[np.int64] | None = None,
    *,
    width: int = 0,
) -> Units:
    """Examples of a split, as `Units` on the CPU.

    Args:
        split: where they are.
        users: int64 (rows,), positions in ``split``.
        examples: int64 (rows,), each one's position among its user's.
        offsets: int64 (units + 1,), which rows belong to one unit; None for a unit per row.
        width: least one of the rows as they are padded.
    """
    rows = split.gather(users, examples)
    offsets = np.arange(len(examples) + 1) if offsets is None else offsets
    return Units.from_flat(rows.tokens, rows.offsets, offsets, rows.targets, width=width)


class Collator:
    """Chooses among the examples of a cohort's users, and gathers their rows.

    Guarantee (invariants 3 and 11): which examples of a user train depends on that user's examples
    and scores, the user's hash, and randomness that no data decides; at most ``group_size`` of a
    user in a step (ULS) or in the whole run (ELS). So no strategy moves a step's sensitivity.

    Under ELS (Charles et al. 2024, Algorithm 1: each user's examples are capped once) and for the
    strategies that rank, a cohort names ranks in a selection that stays the same for the whole
    run. Under ULS with ``random`` it names the examples themselves. ``random-chunk`` and
    ``resampled`` draw anew here: the cohort then names each drawn user once.

    Args:
        split: where the rows are.
        plan: only its sampling is read.
        strategy: see `userdp.data.selections`.
        scores: float32 (examples,), for the perplexity strategies.
        seq_len: the store's, to which rows are padded: how long the longest one is that was drawn
            would decide in what passes all are computed (`userdp.gradients.Units`).
        unsafe_seed: fixes what is drawn here; for tests only.

    Attributes:
        counts: int64 (users,), how many a sampler may draw of each user.

    Raises:
        UseError: ELS with a strategy that draws at each step, or scores are missing.
    """

    def __init__(
        self,
        split: StoreSplit,
        plan: Plan,
        *,
        strategy: Strategy = Strategy.RANDOM,
        scores: NDArray[np.float32] | None = None,
        seq_len: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self._split, self._width = split, seq_len or 0
        self._group_size = plan.sampling.group_size
        self._selection: FixedSelection | RankedSelection | None = None
        self._selector: Selector | None = None
        self.counts = split.counts
        by_user = plan.sampling.by_user
        if by_user and strategy.per_step_only:
            self._selector = build_selector(
                split, plan.sampling.group_size, strategy=strategy, seq_len=seq_len
            )
            self._generator = secret_generator(None if unsafe_seed is None else unsafe_seed + 1)
            self.counts = np.ones_like(split.counts)
        elif not by_user or strategy is not Strategy.RANDOM:
            self.counts, self._selection = select_once(
                split, plan.sampling.group_size, strategy=strategy, scores=scores
            )

    def __call__(self, cohort: Cohort) -> Units:
        """The cohort's rows, one unit per drawn user (ULS) or example (ELS)."""
        if self._selector is not None:
            chosen = self._selector.select(cohort.users, self._generator)
            rows = chosen.rows
            return Units.from_flat(
                rows.tokens, rows.offsets, chosen.offsets, rows.targets, width=self._width
            )
        return gather_units(
            self._split,
            cohort.users,
            self._examples(cohort),
            cohort.offsets,
            width=self._width,
        )

    @property
    def left_out(self) -> int:
        """Examples that no step can draw, as their users hold more than the plan takes of anybody.

        0 where the examples of a user are drawn anew at each step. Operator-only.
        """
        return 0 if self._selection is None else self._selection.left_out

    def _examples(self, cohort: Cohort) -> NDArray[np.int64]:
        """The drawn examples: named by the cohort itself, or by ranks in the fixed selection."""
        if self._selection is None:
            return cohort.examples
        return self._selection.map(cohort.users, cohort.examples)

    def tokens(self, cohort: Cohort) -> NDArray[np.int64]:
        """int64 (units,): tokens of each unit; 1 each where they are drawn only at gathering."""
        if self._selector is not None:
            return np.ones(cohort.units, dtype=np.int64)
        lengths = self._split.lengths(cohort.users, self._examples(cohort))
        ends = np.concatenate([[0], np.cumsum(lengths)])
        return np.diff(ends[cohort.offsets]).astype(np.int64)

    def microbatches(self, cohort: Cohort, *, rows: int) -> list[Cohort]:
        """The cohort cut between units, into parts of at most ``rows`` rows where a unit allows it.

        At least one part. Where the cut falls depends on numbers of rows alone.
        """
        sizes = np.diff(cohort.offsets)
        if self._selector is not None:
            sizes = sizes * self._group_size
        cuts, held = [0], 0
        for unit, size in enumerate(sizes.tolist()):
            if held and held + size > rows:
                cuts.append(unit)
                held = 0
            held += size
        cuts.append(cohort.units)
        return [cohort.part(begin, end) for begin, end in pairwise(cuts)]
