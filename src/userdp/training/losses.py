"""The loss of a run, and the losses of single examples of a store.

The second is the one loop that measures: evaluation, personalization, scores and attacks use it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.data.store import StoreSplit
from userdp.gradients import Loss, Units, causal_lm_loss, require_masked, row_losses
from userdp.gradients.model_randomness import secret_randomness
from userdp.training.collate import gather_units
from userdp.training.config import Precision, TrainConfig
from userdp.vocabulary import require_count


def build_loss(config: TrainConfig, model: nn.Module) -> Loss:
    """`causal_lm_loss`, under autocast to bfloat16 if ``config`` asks for it.

    Sensitivity does not depend on it: a row's gradient stays a function of only that row, and is
    clipped as computed, in float32 or wider.
    """
    if config.precision is Precision.FLOAT32:
        return causal_lm_loss
    device = next(model.parameters()).device.type

    def loss(
        model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return causal_lm_loss(model, input_ids, lengths, targets)

    return loss


def losses_of(
    loss: Loss, model: nn.Module, units: Units, rows: slice | NDArray[np.int64]
) -> Tensor:
    """The loss of some rows, (rows,), in one pass that is as wide as the longest of them."""
    width = int(units.lengths[rows].max())
    targets = None if units.targets is None else units.targets[rows, :width]
    return row_losses(loss, model, units.input_ids[rows, :width], units.lengths[rows], targets)


@secret_randomness()
@torch.no_grad()
def split_losses(
    model: nn.Module,
    part: StoreSplit,
    users: NDArray[np.int64],
    examples: NDArray[np.int64],
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
    done: Callable[[int], None] = lambda rows: None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Each example's mean loss per target token, and its number of targets. Operator-only.

    Examples of like length share a pass, the longest first, so that memory runs out at once or
    never. The model is in evaluation mode meanwhile.

    Args:
        model: on any device.
        part: of a store.
        users: int64 (rows,), positions in ``part``.
        examples: int64 (rows,), each one's position among its user's.
        loss: with a mask, only over marked tokens.
        batch: rows in one pass.
        done: is told how many rows are done.

    Returns:
        float64 (rows,) losses and int64 (rows,) targets, in the order given; a row without targets
        has a loss of no meaning.

    Raises:
        UseError: ``batch`` is less than 1, or the store has a loss mask that ``loss`` would ignore.
    """
    require_count("batch", batch)
    device = next(model.parameters()).device
    order = np.argsort(-part.lengths(users, examples), kind="stable")
    losses = np.zeros(len(users))
    targets = np.zeros(len(users), dtype=np.int64)
    was_training = model.training
    model.eval()
    try:
        for begin in range(0, len(order), batch):
            here = order[begin : begin + batch]
            units = gather_units(part, users[here], examples[here]).to(device)
            if units.targets is not None:
                require_masked(loss)
            of_rows = row_losses(loss, model, units.input_ids, units.lengths, units.targets)
            losses[here] = of_rows.double().cpu().numpy()
            targets[here] = units.target_counts().cpu().numpy()
            done(begin + len(here))
    finally:
        model.train(was_training)
    return losses, targets
