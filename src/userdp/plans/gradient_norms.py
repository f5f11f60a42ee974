"""`GradientNorms`: typical norms of gradients as plain numbers, and where the numbers come from.

`Measure` says of whom they are measured. `userdp.training.norm_probe` measures them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.core.files import OPERATOR_FILE, SHAREABLE_FILE, write_json
from userdp.core.vocabulary import require_count, require_positive
from userdp.plans.frozen_plan import Saved
from userdp.plans.provenance import MadeFor, Provenance


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """Of whom gradient norms are measured, and what that costs.

    Args:
        source: held-out-users (users the store never trains on: exact, and covered by no claim),
            public (the store's training users are public people: free), dp-release (its training
            users under DP, each measured with probability users / population) or non-private (its
            training users, exactly: then no epsilon covers the plan, and the report says so).
        users: how many to draw; of a dp-release, how many to expect.
        max_group_size: the largest G.
        epsilon: of a dp-release: the price of all norms together, charged to the store.
        seed: of the draw of users and examples; by default the operating system draws it.
    """

    source: Provenance = Provenance.HELD_OUT
    users: int = 128
    max_group_size: int = 16
    epsilon: float | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientNorms(Saved):
    """Norms of gradients at the pre-trained weights (Charles et al. 2024, Equation 8).

    Args:
        model: the model in words; not a path.
        users: number of the measured users; the paper takes 128.
        user_norms: L_ULS by group size: the statistic, over users, of the norm of the mean gradient
            of min(G, n_u) of the user's examples. It must hold G = 1.
        example_norm: L_ELS: the same statistic over single examples.
        source: the people whose gradients were measured; never ``DECLARED``.
        statistic: ψ of Equation 8, in words.
        ledger_line: the id of the store ledger's query; only for the source ``dp-release``.
        rank_error: only for ``dp-release``: with 95% probability each norm is that of a user
            within this many ranks of the median; a public constant.
        median_examples_per_user: of the measured users, if it was counted.
        made_for: the measured store and model; None where they are not known.

    Raises:
        UseError: a norm is not finite and positive, G = 1 is missing, or a ledger line is named
            for another source than ``dp-release``.

    Source: Charles et al. 2024, Section 6 and Appendix F.
    """

    schema: ClassVar[str] = "userdp.norms/5"
    what: ClassVar[str] = "file of gradient norms"

    model: str
    users: int
    user_norms: Mapping[int, float]
    example_norm: float
    source: Provenance
    statistic: str = "median"
    ledger_line: str | None = None
    rank_error: float | None = None
    median_examples_per_user: int | None = None
    made_for: MadeFor | None = None

    def __post_init__(self) -> None:
        require_count("users", self.users)
        if 1 not in self.user_norms:
            raise UseError(
                "gradient norms must hold the group size 1: every plan is compared with it",
                hint="measure them again: `userdp plan --model`",
            )
        norms = {
            require_count("group size", size, at_most=10**6): require_positive(
                f"user norm at group size {size}", self.user_norms[size]
            )
            for size in sorted(self.user_norms)
        }
        object.__setattr__(self, "user_norms", MappingProxyType(norms))
        require_positive("example_norm", self.example_norm)
        if (self.ledger_line is not None) != (self.source == Provenance.DP_RELEASE):
            raise UseError(
                "norms name a ledger line if, and only if, they are a DP release: what the release "
                "cost is read there",
                hint=f"source is {self.source}, ledger_line is {self.ledger_line!r}",
            )
        if self.median_examples_per_user is not None:
            require_count("median_examples_per_user", self.median_examples_per_user)

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all; readable only by its owner where it is private."""
        private = self.source in (Provenance.HELD_OUT, Provenance.NON_PRIVATE)
        write_json(Path(path), encode(self), mode=OPERATOR_FILE if private else SHAREABLE_FILE)


def require_informative(users: float, rank_error: float | None) -> None:
    """Refuse a release whose noise may put any user's norm in the median's place.

    Args:
        users: the expected number of users behind the norms.
        rank_error: see `GradientNorms`; None for norms that are no release.

    Raises:
        UseError: the rank error is more than a quarter of the users, so that the interval is wider
            than that between the quartiles.
    """
    if rank_error is None or rank_error <= users / 4:
        return
    raise UseError(
        f"released norms would say nothing: with {users:,.0f} users each may be that of any user "
        f"within {rank_error:,.0f} of the median",
        hint=f"release them over {math.ceil(4 * rank_error):,} users or more, or at a larger "
        "epsilon; or plan without norms: the public rules choose all that norms would",
    )
