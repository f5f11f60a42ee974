"""From a `Cohort`, which is indices, to its token rows in the store, as `Units`.

Gathering takes a thousandth of a step's time and less, so nothing works ahead. The rows of a whole
cohort are gathered at once, 8 bytes a token: the engine cuts them into passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from userdp.core.errors import UseError
from userdp.core.files import digest_of_file
from userdp.data.selection import FixedSelection, draw_rows, read_scores, select_once
from userdp.data.selection_strategies import Strategy
from userdp.data.splits import Split
from userdp.data.store_contents import TokenRows
from userdp.data.user_store import StoreSplit, UserStore
from userdp.gradients import Units
from userdp.plans import Plan
from userdp.sampling.draws import Cohort, secret_generator
from userdp.training.config import PrivateOptions


def gather_units(
    split: StoreSplit,
    users: NDArray[np.int64],
    examples: NDArray[np.int64],
    offsets: NDArray[np.int64] | None = None,
) -> Units:
    """Examples of a split, as `Units` on the CPU.

    Args:
        split: where they are.
        users: int64 (rows,), positions in ``split``.
        examples: int64 (rows,), each one's position among its user's.
        offsets: int64 (units + 1,), which rows belong to one unit; None for a unit per row.
    """
    rows = split.gather(users, examples)
    offsets = np.arange(len(examples) + 1) if offsets is None else offsets
    return Units.from_flat(rows.tokens, rows.offsets, offsets, rows.targets)


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
        store: whose training split is read. Rows are padded to its ``seq_len``: padded to the
            longest drawn row, one user would decide the passes of all (`userdp.gradients.Units`).
        plan: only its sampling is read.
        options: the selection (`userdp.data.selection`), with its scores and test seeds.

    Attributes:
        counts: int64 (users,), how many a sampler may draw of each user.
        in_words: the selection, with the digest of its scores; a resumed run must share it.

    Raises:
        UseError: there is no such selection, ELS with one that draws at each step, or scores are
            missing or say nothing.
    """

    def __init__(self, store: UserStore, plan: Plan, options: PrivateOptions) -> None:
        try:
            strategy = Strategy(options.selection)
        except ValueError:
            raise UseError(
                f"there is no selection {options.selection!r}",
                hint=f"one of: {', '.join(Strategy)}",
            ) from None
        self.in_words, scores = str(strategy), None
        if options.scores is not None:
            if not strategy.scored:
                raise UseError(
                    f"scores say nothing with the selection {strategy}",
                    hint="give --set learning.selection=highest-perplexity or lowest-perplexity",
                )
            scores = read_scores(options.scores, store)
            self.in_words += f" {digest_of_file(options.scores)}"
        self._split, self._width = store.split(Split.TRAIN), store.meta.seq_len
        self._group_size = plan.sampling.group_size
        self._selection: FixedSelection | None = None
        self._drawn: Callable[..., tuple[TokenRows, NDArray[np.int64]]] | None = None
        self.counts = self._split.counts
        by_user = plan.sampling.by_user
        if by_user and strategy.per_step_only:
            seed = options.unsafe_seeds.draws
            self._drawn = partial(
                draw_rows,
                self._split,
                generator=secret_generator(None if seed is None else seed + 1),
                strategy=strategy,
                group_size=self._group_size,
                seq_len=self._width,
            )
            self.counts = np.ones_like(self.counts)
        elif not by_user or strategy is not Strategy.RANDOM:
            self._selection = select_once(
                self._split, self._group_size, strategy=strategy, scores=scores
            )
            self.counts = self._selection.counts

    def __call__(self, cohort: Cohort) -> Units:
        """The cohort's rows, one unit per drawn user (ULS) or example (ELS)."""
        if self._drawn is not None:
            rows, offsets = self._drawn(cohort.users)
        else:
            rows = self._split.gather(cohort.users, self._examples(cohort))
            offsets = cohort.offsets
        return Units.from_flat(rows.tokens, rows.offsets, offsets, rows.targets, width=self._width)

    @property
    def left_out(self) -> int:
        """Examples that no step can draw, as their users hold more than the plan takes of anybody.

        0 where the examples of a user are drawn anew at each step. Operator-only.
        """
        return 0 if self._selection is None else self._selection.left_out

    def _examples(self, cohort: Cohort) -> NDArray[np.int64]:
        """The drawn examples: named by the cohort itself, or by ranks in the fixed selection."""
        fixed, named = self._selection, cohort.examples
        return named if fixed is None else fixed.map(cohort.users, named)

    def tokens(self, cohort: Cohort) -> NDArray[np.int64]:
        """int64 (units,): tokens of each unit; 1 each where they are drawn only at gathering."""
        if self._drawn is not None:
            return np.ones(cohort.units, dtype=np.int64)
        lengths = self._split.lengths(cohort.users, self._examples(cohort))
        return np.diff(np.concatenate([[0], np.cumsum(lengths)])[cohort.offsets]).astype(np.int64)
