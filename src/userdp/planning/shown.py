"""Every candidate of a proposal side by side, for the command line, a notebook and a data frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from userdp.planning.els import ElsCell
    from userdp.planning.proposal import Proposal
    from userdp.planning.uls import UlsCell


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One candidate.

    Args:
        name: what it is the best of.
        group: 0 for answers, 1 for sweeps, 2 for other numbers of steps.
        cell: its numbers.
        to_best: its noise beside the least at the same T; None at other T.
        averaged: noise on the mean of all T gradients; None where it was not computed.
        chosen: it is the plan.
    """

    name: str
    group: int
    cell: UlsCell | ElsCell
    to_best: float | None
    averaged: float | None
    chosen: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """As words, under `HEADINGS`."""
        cell = self.cell
        return (
            self.name,
            str(cell.group_size),
            f"{cell.units:.5g}",
            str(cell.steps),
            f"{cell.noise_multiplier:.4g}",
            f"{cell.noise_std:.4g}",
            "" if self.to_best is None else f"{self.to_best:.3f}",
            "" if self.averaged is None else f"{self.averaged:.3g}",
        )

    @property
    def values(self) -> dict[str, Any]:
        """As numbers."""
        cell = self.cell
        return {
            "candidate": self.name,
            "group_size": cell.group_size,
            "units": cell.units,
            "steps": cell.steps,
            "noise_multiplier": cell.noise_multiplier,
            "noise_std": cell.noise_std,
            "to_best": self.to_best,
            "averaged_noise_std": self.averaged,
            "chosen": self.chosen,
        }


HEADINGS = ("", "G", "M or B", "T", "sigma", "noise", "to best", "averaged")
"""M users a step, or B examples; ``noise`` is on each coordinate of one step's mean gradient."""


def candidate_rows(proposal: Proposal) -> list[Row]:
    """All candidates, in groups."""
    candidates, plan = proposal.candidates, proposal.plan
    answers = (candidates.uls_optimum, candidates.els_median_rule)
    best = min(cell.noise_std for cell in answers if cell is not None)
    chosen = (plan.algorithm, plan.sampling.group_size, plan.steps, plan.noise.multiplier)

    def row(group: int, name: str, cell: UlsCell | ElsCell, averaged: float | None = None) -> Row:
        numbers = (cell.kind, cell.group_size, cell.steps, cell.noise_multiplier)
        return Row(
            name=name,
            group=group,
            cell=cell,
            to_best=cell.noise_std / best if cell.steps == plan.steps else None,
            averaged=averaged,
            chosen=numbers == chosen,
        )

    def rows() -> Iterator[Row]:
        yield row(0, "ULS, problem (10), all G", candidates.uls_optimum)
        yield row(0, "ULS, Estimate-and-Double", candidates.uls_estimate_and_double)
        yield row(0, "ULS, Algorithm 3 as printed", candidates.uls_estimate_and_double_literal)
        if candidates.els_median_rule is not None:
            yield row(0, "ELS, median rule", candidates.els_median_rule)
        measured = set(proposal.norms.group_sizes)
        for uls in candidates.uls:
            if uls.group_size in measured:
                yield row(1, "ULS, G M = B", uls)
        for els in candidates.els:
            yield row(1, "ELS", els)
        for uls in candidates.uls_other_steps:
            name = "ULS, as above" if uls.steps == plan.steps else "ULS, same B T"
            yield row(2, name, uls, uls.averaged_noise_std)

    return list(rows())
