"""The candidates of a plan as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from userdp.planning.els import ElsCell
from userdp.planning.proposal import Proposal
from userdp.planning.uls import UlsCell
from userdp.reporting.curves import Plot, Series, save_plots
from userdp.vocabulary import epsilon_up

_NOISE = "noise on a coordinate of the mean gradient"


def draw(proposal: Proposal, path: Path) -> None:
    """Draw noise against group size at T, and noise against T at the same B T.

    The file is a .png, .pdf, .svg or .html; it is as private as the plan's.
    """
    candidates, steps = proposal.candidates, proposal.candidates.uls_other_steps
    by_size = [
        _by_group_size("ULS, G M = B", candidates.uls),
        _by_group_size("ULS, problem (10)", [candidates.uls_optimum]),
        _by_group_size("ULS, Estimate-and-Double", [candidates.uls_estimate_and_double]),
        _by_group_size("ULS, Algorithm 3 as printed", [candidates.uls_estimate_and_double_literal]),
    ]
    if candidates.els:
        by_size.append(_by_group_size("ELS, B examples", candidates.els))
    if candidates.els_median_rule is not None:
        by_size.append(_by_group_size("ELS, median rule", [candidates.els_median_rule]))
    counts = tuple(float(cell.steps) for cell in steps)
    by_steps = (
        Series(name="of one step", xs=counts, ys=tuple(cell.noise_std for cell in steps)),
        Series(
            name="averaged over all steps",
            xs=counts,
            ys=tuple(cell.averaged_noise_std for cell in steps),
        ),
    )
    left = Plot(
        title=f"B = {proposal.compute:g}, T = {proposal.plan.steps}, "
        f"ε = {epsilon_up(proposal.budget.training_epsilon, 4)}",
        x_label="group size G",
        y_label=_NOISE,
        series=tuple(by_size),
        logarithmic="xy",
    )
    right = Plot(
        title="ULS, the best (G, M) for each T",
        x_label="steps T, at the same B T",
        y_label=_NOISE,
        series=by_steps,
        logarithmic="xy",
    )
    save_plots([left, right], path, operator_only=proposal.operator_only)


def _by_group_size(name: str, cells: Sequence[UlsCell | ElsCell]) -> Series:
    """A line; one cell is a point, which its name tells the group size of."""
    return Series(
        name=name if len(cells) > 1 else f"{name}: G = {cells[0].group_size}",
        xs=tuple(float(cell.group_size) for cell in cells),
        ys=tuple(cell.noise_std for cell in cells),
    )
