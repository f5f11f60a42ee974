"""The candidates of a plan as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from userdp.reporting.drawing import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from userdp.planning.proposal import Proposal


def draw(proposal: Proposal, path: Path) -> None:
    """Draw to a .png, .pdf, .svg or .html file, whole or not at all, as private as the plan's."""
    save(_figure(proposal), path, operator_only=proposal.operator_only)


def _figure(proposal: Proposal) -> Figure:
    """Left: noise against group size at T; right: noise against T at the same B T."""
    from matplotlib.figure import Figure

    found = proposal.candidates
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    cells = found.optimum.evaluated
    left.plot(
        [cell.group_size for cell in cells],
        [cell.noise_std for cell in cells],
        marker=".",
        label="ULS, G M = B",
    )
    for cell, marker, name in (
        (found.optimum.cell, "*", "ULS, problem (10)"),
        (found.doubling.cell, "s", "ULS, Estimate-and-Double"),
        (found.literal.cell, "x", "ULS, Algorithm 3 as printed"),
    ):
        left.plot(
            [cell.group_size],
            [cell.noise_std],
            marker=marker,
            markersize=12 if marker == "*" else 8,
            linestyle="none",
            label=f"{name}: G = {cell.group_size}",
            fillstyle="none" if marker == "s" else "full",
        )
    if found.els:
        left.plot(
            [cell.group_size for cell in found.els],
            [cell.noise_std for cell in found.els],
            marker=".",
            linestyle="--",
            label="ELS, B examples",
        )
    if found.els_choice is not None:
        left.plot(
            [found.els_choice.group_size],
            [found.els_choice.noise_std],
            marker="D",
            linestyle="none",
            label=f"ELS, median rule: G = {found.els_choice.group_size}",
        )
    left.set_xlabel("group size G")
    left.set_ylabel("noise on a coordinate of the mean gradient")
    left.set_title(
        f"B = {proposal.compute:g}, T = {proposal.plan.steps}, "
        f"ε = {proposal.budget.training_epsilon:.4g}",
        fontsize=10,
    )
    steps = [cell.steps for cell in found.steps]
    right.plot(steps, [cell.noise_std for cell in found.steps], marker="o", label="of one step")
    right.plot(
        steps,
        [cell.averaged_noise_std for cell in found.steps],
        marker="o",
        linestyle="--",
        label="averaged over all steps",
    )
    right.set_ylabel("noise on a coordinate of the mean gradient")
    right.set_xlabel("steps T, at the same B T")
    right.set_title("ULS, the best (G, M) for each T", fontsize=10)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8)
    return figure
