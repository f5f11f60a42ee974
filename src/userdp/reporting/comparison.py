"""Several runs side by side: which ε may be compared, and what they cost together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from userdp.claims.claims import compose
from userdp.claims.lineage import Lineage
from userdp.reporting.numbers import delta_text, epsilon_text
from userdp.reporting.run_facts import RunFacts
from userdp.vocabulary import Guarantee


@dataclass(frozen=True, kw_only=True, slots=True)
class Together:
    """What anybody who sees several runs on one store may learn: the sum of all their parts."""

    names: tuple[str, ...]
    epsilon: str
    delta: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How the runs of a page relate.

    Args:
        groups: runs with one unit and one adjacency, whose ε mean the same; those without a claim
            are in none.
        warnings: what a reader must know before comparing; empty if all is alike.
        together: for each store with several private runs here, their sum.
    """

    groups: tuple[tuple[RunFacts, ...], ...]
    warnings: tuple[str, ...]
    together: tuple[Together, ...]

    @property
    def comparable(self) -> bool:
        """Whether all claimed ε are about the same unit and adjacency."""
        return len(self.groups) <= 1


def compare(runs: Sequence[RunFacts]) -> Comparison:
    """Group the runs by what their ε means.

    Guarantee: runs whose unit or adjacency differ are never in one group, and `warnings` says so;
    so it does where δ, stores or accountants differ.
    """
    claimed = [run for run in runs if run.private]
    groups: dict[tuple[str, str], list[RunFacts]] = {}
    people: dict[tuple[str, tuple[str, str]], list[RunFacts]] = {}
    for run in claimed:
        kind = (str(run.guarantee.unit), str(run.guarantee.adjacency))
        groups.setdefault(kind, []).append(run)
        if run.store is not None:
            people.setdefault((run.store, kind), []).append(run)
    warnings: list[str] = []
    if len(groups) > 1:
        kinds = "; ".join(
            f"per {unit} under {adjacency}: {', '.join(run.name for run in members)}"
            for (unit, adjacency), members in groups.items()
        )
        warnings.append(
            "These runs make different kinds of claim, so their ε cannot be compared: a smaller "
            f"number in one kind may protect less than a larger one in another. {kinds}."
        )
    stores = {store for store, _ in people}
    if len(people) > len(stores):
        warnings.append(
            "Runs here ran on the same people under different kinds of claim: no sum of their ε "
            "bounds what they tell together."
        )
    if len(stores) > 1:
        warnings.append(
            "These runs are on different user stores: each ε is about the people of its own, and "
            "losses measured on different people say little side by side."
        )
    accountants = {run.guarantee.accountant for run in claimed}
    if len(accountants) > 1:
        warnings.append(
            f"Different accountants bound these ε ({', '.join(sorted(accountants))}). All are "
            "upper bounds, some looser than others: a larger ε may be the accountant's doing."
        )
    deltas = {run.guarantee.delta for run in claimed}
    if len(deltas) > 1:
        listed = ", ".join(delta_text(delta) for delta in sorted(deltas))
        warnings.append(
            f"δ differs between these runs ({listed}): compare ε at one δ, with "
            "userdp account --ledger RUN --delta DELTA."
        )
    return Comparison(
        groups=tuple(tuple(members) for members in groups.values()),
        warnings=tuple(warnings),
        together=tuple(
            Together(
                names=tuple(run.name for run in same),
                epsilon=epsilon_text(whole.epsilon),
                delta=delta_text(whole.delta, 4),
            )
            for same in people.values()
            if len(same) > 1
            for whole in [_together(same)]
        ),
    )


def _together(runs: Sequence[RunFacts]) -> Guarantee:
    """The sum of what several models descend from; what more than one descends from counts once."""
    return compose(sum((run.claim.lineage for run in runs), start=Lineage()))
