"""Checkpoints: what a resumed run needs, and nothing that would let it repeat itself.

Each is one file of `torch.save`, with the trainable weights, the optimizer's state and the moving
average. It is read with ``weights_only``, which loads tensors and numbers and runs no code. The
sampler's state is not kept: a resumed run draws afresh (invariant 7). Checkpoints are for the
operator only: the optimizer's state is noisy, but nobody else needs it.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from userdp.core import files
from userdp.core.errors import FailureError, in_short
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import like, local, part_of, whole
from userdp.training.config import TrainConfig
from userdp.training.distributed import World
from userdp.training.optimizers import WeightAverage

_USUAL = TrainConfig()
_KEPT = 2
_SHARE = 20
"""Checkpoints by the clock take at most one part in so many of a run's time: writing a large model
may take longer than the time after which the next one would be due."""


class Checkpoints:
    """The checkpoints of a run: when one is due, and how it is written and read.

    Where the model is sharded, all processes save; what is written does not tell that it was.

    Args:
        folder: of the run's checkpoints.
        run_id: of the run: another run's weights have a price of their own.
        model: its trainable parameters are kept.
        optimizer: and its state.
        average: and its state.
        config: how many steps and seconds there are between two checkpoints at most; more seconds
            where writing one takes long.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage,
        config: TrainConfig = _USUAL,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._run_id = folder, run_id
        self._model, self._optimizer, self._average = model, optimizer, average
        self._config, self._clock = config, clock
        # The first is due after the first step: a full disk shows before more is charged.
        self._next = clock()

    def due(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step % self._config.checkpoint_every == 0 or self._clock() >= self._next

    def save(self, step: int, *, writes: bool = True) -> None:
        """Write one, whole or not at all, and keep the last two.

        Args:
            step: attempts charged (or plain steps done) so far.
            writes: whether this process writes.

        Raises:
            FailureError: the disk refused; the checkpoints that there were are unchanged.
        """
        begin = self._clock()
        kept = {
            "step": step,
            "run_id": self._run_id,
            "weights": dict(trainable_parameters(self._model)),
            "average": self._average.values,
            "average_updates": self._average.updates,
            "optimizer": self._optimizer.state_dict(),
        }
        kept = tree_map_only(Tensor, lambda tensor: whole(tensor.detach()), kept)
        if writes:
            content = io.BytesIO()
            torch.save(tree_map_only(Tensor, Tensor.cpu, kept), content)
            files.operator_folder(self._folder)
            path = self._folder / f"step-{step:09d}.pt"
            files.write_file(path, content.getbuffer(), mode=files.OPERATOR_FILE)
            for old in self._all()[:-_KEPT]:
                old.unlink()
        end = self._clock()
        self._next = end + max(self._config.checkpoint_seconds, _SHARE * (end - begin))

    def restore(self, *, most_steps: int) -> int | None:
        """Put the latest one into the model, sharded or not, its optimizer and its average.

        A collective: rank 0 reads.

        Args:
            most_steps: attempts charged so far; without privacy all that are planned.

        Returns:
            The step after which it was written; None if there is none.

        Raises:
            FailureError: as `read`.
        """
        kept = World().on_rank_zero(lambda: self.read(most_steps=most_steps))
        if kept is None:
            return None
        with torch.no_grad():
            for name, parameter in trainable_parameters(self._model).items():
                local(parameter).copy_(part_of(parameter, kept["weights"][name]))
                if name in self._average.values:
                    own = part_of(parameter, kept["average"][name])
                    self._average.values[name].copy_(like(parameter, own))
        self._average.updates = kept["average_updates"]
        order = [one for group in self._optimizer.param_groups for one in group["params"]]
        for place, state in kept["optimizer"]["state"].items():
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == order[place].shape:
                    state[key] = like(order[place], part_of(order[place], value))
        self._optimizer.load_state_dict(kept["optimizer"])
        return int(kept["step"])

    def read(self, *, most_steps: int) -> dict[str, Any] | None:
        """The content of the latest one; None if there is none.

        Raises:
            FailureError: it cannot be read, is another run's, or is of a step that this run has not
                taken: its weights are not what this run's ledger tells of.
        """
        paths = self._all()
        if not paths:
            return None
        files.sweep(self._folder)
        try:
            kept: dict[str, Any] = torch.load(paths[-1], map_location="cpu", weights_only=True)
            ours = self._is_ours(kept, most_steps)
        except (OSError, EOFError, pickle.UnpicklingError, RuntimeError, LookupError) as error:
            raise FailureError(
                f"the checkpoint {paths[-1]} cannot be read: {in_short(error)}",
                hint="remove it to resume from the one before",
            ) from error
        if not ours:
            raise FailureError(
                f"{paths[-1]} is not of this run: what another one learned has its own price",
                hint="put this run's own back, or remove it to resume from the one before",
            )
        return kept

    def _is_ours(self, kept: Mapping[str, Any], most_steps: int) -> bool:
        return bool(kept["run_id"] == self._run_id and kept["step"] <= most_steps)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.pt"))
