"""Checkpoints: what a resumed run needs, and nothing that would let it repeat itself.

One file each, in safetensors' format, which cannot run code when it is read: weights, optimizer
state and moving average, and in its header the numbers. The sampler's state is not kept: a resumed
run draws afresh (invariant 7). Operator-only: optimizer state is noisy, but nobody needs it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from userdp.core import files
from userdp.core.codec import parse, text_of
from userdp.core.errors import FailureError, in_short
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import like, local, part_of, whole
from userdp.training.config import TrainConfig
from userdp.training.distributed import current_world
from userdp.training.optimizers import WeightAverage

_USUAL = TrainConfig()
_KEPT = 2
_FACTS = "facts"
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
        state, average = self._optimizer.state_dict(), self._average
        held = [(i, *item) for i, values in state["state"].items() for item in values.items()]
        parameters = trainable_parameters(self._model)
        tensors = {f"weights.{n}": p.detach() for n, p in parameters.items()}
        tensors |= {f"optimizer.{i}.{key}": v for i, key, v in held if isinstance(v, Tensor)}
        tensors |= {f"average.{name}": value for name, value in average.values.items()}
        tensors = {name: whole(tensor) for name, tensor in tensors.items()}
        if writes:
            facts = {
                "step": step,
                "run_id": self._run_id,
                "average_updates": average.updates,
                "numbers": [entry for entry in held if not isinstance(entry[2], Tensor)],
                "groups": state["param_groups"],
            }
            tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
            content = save(tensors, {_FACTS: text_of(facts, finite=False)})
            files.operator_folder(self._folder)
            path = self._folder / f"step-{step:09d}.safetensors"
            files.write_file(path, content, mode=files.OPERATOR_FILE)
            for old in self._all()[:-_KEPT]:
                old.unlink()
        end = self._clock()
        self._next = end + max(self._config.checkpoint_seconds, _SHARE * (end - begin))

    def restore(self, *, most_steps: int | None) -> int | None:
        """Put the latest one into the model, sharded or not, its optimizer and its average.

        A collective: rank 0 reads.

        Args:
            most_steps: attempts charged so far; None for a run without privacy.

        Returns:
            The step after which it was written; None if there is none.

        Raises:
            FailureError: as `read`.
        """
        found = current_world().on_rank_zero(lambda: self.read(most_steps=most_steps))
        if found is None:
            return None
        tensors, facts = found
        with torch.no_grad():
            for name, parameter in trainable_parameters(self._model).items():
                local(parameter).copy_(part_of(parameter, tensors[f"weights.{name}"]))
                if name in self._average.values:
                    own = part_of(parameter, tensors[f"average.{name}"])
                    self._average.values[name].copy_(like(parameter, own))
        self._average.updates = facts["average_updates"]
        groups = self._optimizer.param_groups
        order = [parameter for group in groups for parameter in group["params"]]
        state: dict[int, dict[str, Any]] = defaultdict(dict)
        for index, key, number in facts["numbers"]:
            state[index][key] = number
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, place, key = name.split(".", 2)
                parameter = order[int(place)]
                if value.shape == parameter.shape:
                    value = like(parameter, part_of(parameter, value))
                state[int(place)][key] = value
        self._optimizer.load_state_dict({"state": dict(state), "param_groups": facts["groups"]})
        return int(facts["step"])

    def read(self, *, most_steps: int | None) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The tensors and numbers of the latest one; None if there is none.

        Raises:
            FailureError: it cannot be read, is another run's, or is of a step that this run has not
                taken: its weights are not what this run's ledger tells of.
        """
        paths = self._all()
        if not paths:
            return None
        files.sweep(self._folder)
        try:
            with safe_open(paths[-1], "pt") as file:
                facts = parse(file.metadata()[_FACTS], finite=False)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            ours = self._is_ours(facts, most_steps)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise FailureError(
                f"the checkpoint {paths[-1]} cannot be read: {in_short(error)}",
                hint="remove it to resume from the one before",
            ) from error
        if not ours:
            raise FailureError(
                f"the checkpoint {paths[-1]} is not of this run: going on from it would release "
                "what another run has learned, at the price of this one",
                hint="put this run's own back, or remove it to resume from the one before",
            )
        return tensors, facts

    def _is_ours(self, facts: Mapping[str, Any], most_steps: int | None) -> bool:
        taken = most_steps is None or facts["step"] <= most_steps
        return bool(taken and facts["run_id"] == self._run_id)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*.safetensors"))
