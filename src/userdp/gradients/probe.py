r"""Norms of gradients at given weights: what the planner must know of a data set.

For a user's examples in random order, z_1, …, z_n, and the group sizes G of a grid,

.. math:: \rho(G) = \Big\|\frac{1}{\min(G, n)} \sum_{j \le \min(G, n)} \nabla f(\theta, z_j)\Big\|

all come from one pass over the examples, since the mean over G is the running sum of the gradients
at its G-th term. The running sum is over one random order, so :math:`\rho(G)` of one user are means
over nested subsets: each is over a random subset, as Equation 8 asks, and the noise of the choice
cancels in the ratios of Equation 11.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients.clipping import squared_norm
from userdp.gradients.losses import Loss, require_masked, row_losses
from userdp.gradients.model_randomness import secret_randomness
from userdp.gradients.models import require_uncoupled, trainable_parameters
from userdp.gradients.units import Units
from userdp.vocabulary import require_count


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedNorms:
    """Gradient norms of users and of their examples. Exact, so operator-only for private data.

    Attributes:
        group_sizes: the grid, rising.
        users: float64, (users, group sizes); ρ_u(G). NaN where a gradient was not finite.
        examples: float64, (rows,); the norm of each example's own gradient, user by user.
        user_of_example: int64, (rows,); whose it is.
        non_finite: examples whose gradient was NaN or infinite.
    """

    group_sizes: tuple[int, ...]
    users: Tensor
    examples: Tensor
    user_of_example: Tensor
    non_finite: int

    def user_median(self, group_size: int) -> float:
        """L_ULS(G) of Equation 8 with the median for ψ, over users with finite gradients.

        Raises:
            UseError: G is not in the grid, or no user's gradient is finite.
        """
        if group_size not in self.group_sizes:
            raise UseError(f"group size {group_size} was not probed, only {self.group_sizes}")
        return _median(self.users[:, self.group_sizes.index(group_size)])

    def example_median(self, group_size: int | None = None) -> float:
        """L_ELS, the median norm of one example's gradient.

        Args:
            group_size: counts the first G examples of each user alone, as ELS with that cap draws
                them; all probed ones by default.

        Raises:
            UseError: no gradient is finite.
        """
        if group_size is None:
            return _median(self.examples)
        _, counts = torch.unique_consecutive(self.user_of_example, return_counts=True)
        rank = torch.cat([torch.arange(int(count)) for count in counts])
        return _median(self.examples[rank < group_size])


@secret_randomness()
def probe_norms(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    group_sizes: Sequence[int],
    done: Callable[[int], None] | None = None,
) -> ProbedNorms:
    """Norms of mean gradients over the first min(G, n) rows of each unit, for every G of a grid.

    One backward pass per row, in the order given; the sum of a unit's gradients is kept in float64.
    Weights are not changed, ``.grad`` is neither read nor written.

    Args:
        model: in training or evaluation mode (left as it is); parameters that require a gradient
            count, each tensor once.
        loss: per-row loss, see `userdp.gradients.losses.Loss`.
        units: the sampled users, each with its examples in random order; units without rows are
            left out. Rows beyond the largest group size are not read.
        group_sizes: the grid, rising.
        done: is told how many units are done.

    Raises:
        UseError: the grid is empty, does not rise, or holds something else than counts; no unit
            has rows; the model couples units.

    Source: Charles et al. 2024, Equation 8.
    """
    grid = tuple(require_count("group_sizes", size) for size in group_sizes)
    if not grid or any(b <= a for a, b in itertools.pairwise(grid)):
        raise UseError(f"group sizes must be rising counts such as 1, 2, 4, got {grid}")
    require_uncoupled(model)
    if units.targets is not None:
        require_masked(loss)
    parameters = list(trainable_parameters(model).values())
    users: list[list[float]] = []
    examples: list[float] = []
    owners: list[int] = []
    for number, rows in enumerate(units.offsets.diff().clamp(max=grid[-1]).tolist()):
        if rows:
            one = units.select(number, number + 1)
            norms, means = _one_unit(model, loss, parameters, one, grid)
            users.append(means)
            owners += [len(users) - 1] * rows
            examples += norms
        if done is not None:
            done(number + 1)
    if not users:
        raise UseError("there is no user with examples, so that no norm can be probed")
    return ProbedNorms(
        group_sizes=grid,
        users=torch.tensor(users, dtype=torch.float64),
        examples=torch.tensor(examples, dtype=torch.float64),
        user_of_example=torch.tensor(owners, dtype=torch.int64),
        non_finite=sum(not math.isfinite(norm) for norm in examples),
    )


def _one_unit(
    model: nn.Module,
    loss: Loss,
    parameters: list[nn.Parameter],
    unit: Units,
    grid: tuple[int, ...],
) -> tuple[list[float], list[float]]:
    """The norm of each row's gradient, and of the mean over the first min(G, rows) for each G."""
    input_ids, lengths, targets = unit.cut()
    rows = min(len(lengths), grid[-1])
    total = [torch.zeros(p.shape, dtype=torch.float64, device=p.device) for p in parameters]
    norms: list[float] = []
    at: dict[int, float] = {}
    for row in range(rows):
        here = slice(row, row + 1)
        width = max(1, int(lengths[row]))
        marks = None if targets is None else targets[here, :width]
        with torch.enable_grad():
            losses = row_losses(loss, model, input_ids[here, :width], lengths[here], marks)
            gradient = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
        parts = [g.to_dense() for g in gradient if g is not None]
        norms.append(math.sqrt(squared_norm(parts)))
        for into, part in zip(total, gradient, strict=True):
            if part is not None:
                into.add_(part.to_dense())
        if row + 1 in grid or row + 1 == rows:
            at[row + 1] = math.sqrt(squared_norm(total)) / (row + 1)
    return norms, [at[min(size, rows)] for size in grid]


def _median(norms: Tensor) -> float:
    """The middle of the finite norms (the mean of both middle ones)."""
    finite = norms[norms.isfinite()]
    if not len(finite):
        raise UseError("no gradient was finite, so that no norm can be planned with")
    return float(finite.quantile(0.5))
