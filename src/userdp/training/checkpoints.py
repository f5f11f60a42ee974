"""Checkpoints: what a resumed run needs, and nothing that would let it repeat itself.

Weights, optimizer state and moving average as safetensors, numbers as JSON: no pickle, which can
run code when it is read. The sampler's state is not kept: a resumed run draws afresh (invariant 7).
Operator-only: optimizer state is noisy, but nobody needs it.

Noise with memory is another matter: its state is written at every step, before the step's noise is
handed out (`keep_noise`), and there is one file, which holds the latest state. It is a secret like
a key: whoever holds it can take noise off what was released. When the run ends it is deleted
(`userdp.ledger.folder.RunFolder.forget_noise`).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor, nn

from userdp import files
from userdp.codec import decode
from userdp.errors import FailureError, UseError, in_short, kind_of
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import like, local, part_of, whole
from userdp.ledger.folder import NOISE
from userdp.out_of_memory import ran_out_of_memory
from userdp.training.averaging import WeightAverage

_KEPT = 2
_STEP = "step"

Content: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors by name, and numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """Where a checkpoint stands.

    Args:
        step: attempts charged (or plain steps done) when it was written.
        run_id: of the run that wrote it: another run's weights have a price of their own.
    """

    step: int
    run_id: str


def save_checkpoint(
    folder: Path,
    position: Position,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
    writes: bool = True,
) -> None:
    """Write a checkpoint, whole or not at all, and keep the last two.

    Where the model is sharded all processes call this, and the one that ``writes`` does so; what
    is written does not tell that it was.
    """
    tensors = {f"weights.{n}": p.detach() for n, p in trainable_parameters(model).items()}
    state_tensors, numbers = _flatten(optimizer.state_dict())
    tensors |= state_tensors
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in average.values.items()}
    tensors = {name: whole(tensor) for name, tensor in tensors.items()}
    if not writes:
        return
    files.operator_folder(folder)
    facts: dict[str, Any] = {
        "step": position.step,
        "run_id": position.run_id,
        "average_updates": average.updates if average else None,
        "optimizer": numbers,
    }
    path = folder / f"step-{position.step:09d}"
    with files.whole_folder(path, mode=files.OPERATOR_FOLDER) as temporary:
        weights = temporary / "state.safetensors"
        try:
            save_file({k: v.cpu().contiguous().clone() for k, v in tensors.items()}, weights)
        except SafetensorError as error:
            raise FailureError(
                f"cannot write a checkpoint to {folder}: {error}",
                hint="free some disk space and resume the run",
            ) from error
        weights.chmod(files.OPERATOR_FILE)
        facts["tensors"] = files.digest_of_file(weights)
        files.write_json(temporary / "state.json", facts, mode=files.OPERATOR_FILE)
    for old in _all(folder)[:-_KEPT]:
        shutil.rmtree(old)


def read_checkpoint(folder: Path, *, run_id: str, most_steps: int | None) -> Content | None:
    """The latest checkpoint; None if there is none.

    Args:
        folder: of the run's checkpoints.
        run_id: of the run.
        most_steps: attempts charged so far; None for a run without privacy.

    Raises:
        FailureError: it cannot be read, is another run's, or is of a step that this run has not
            taken: its weights are not what this run's ledger tells of.
    """
    if not folder.exists():
        return None
    files.sweep(folder)
    paths = _all(folder)
    if not paths:
        return None
    try:
        facts = _facts(files.read_json(paths[-1] / "state.json", what="a checkpoint", finite=False))
        changed = facts.get("tensors") != files.digest_of_file(paths[-1] / "state.safetensors")
        tensors = {} if changed else load_file(paths[-1] / "state.safetensors")
    except (OSError, UseError, SafetensorError) as error:
        raise FailureError(
            f"the checkpoint {paths[-1]} cannot be read: {in_short(error)}",
            hint="remove it to resume from the one before",
        ) from error
    if changed:
        raise FailureError(
            f"the checkpoint {paths[-1]} is not what this run wrote: nobody knows what its weights "
            "have learned",
            hint="remove it to resume from the one before",
        )
    if not _is_of(facts, run_id, most_steps):
        raise FailureError(
            f"the checkpoint {paths[-1]} is not of this run: going on from it would release what "
            "another run has learned, at the price of this one",
            hint="put this run's own checkpoints back, or remove it to resume from the one before",
        )
    return tensors, facts


def _facts(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is noted beside a checkpoint's tensors; `UseError` for what `save` does not write."""
    hints: dict[str, Any] = {
        "step": int,
        "run_id": str,
        "average_updates": int | None,
        "optimizer": dict[str, Any],
        "tensors": str,
    }
    return {
        name: decode(hint, values.get(name), what=f"{name} of the checkpoint")
        for name, hint in hints.items()
    }


def _is_of(facts: Mapping[str, Any], run_id: str, most_steps: int | None) -> bool:
    most = math.inf if most_steps is None else most_steps
    return bool(facts["run_id"] == run_id and 0 <= facts["step"] <= most)


def restore(
    checkpoint: Content,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
) -> Position:
    """Put what was read into a model, sharded or not, its optimizer and its average."""
    try:
        return _restored(checkpoint, model, optimizer, average)
    # What torch's optimizers raise of a state that is none of theirs is documented nowhere.
    except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if ran_out_of_memory(error):  # no fault of the checkpoint, which somebody would remove
            raise
        raise FailureError(
            f"the checkpoint does not fit the run: {kind_of(error)}",
            hint="remove the last checkpoint to resume from the one before",
        ) from error


def _restored(
    checkpoint: Content,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: WeightAverage | None,
) -> Position:
    tensors, facts = checkpoint
    parameters = trainable_parameters(model)
    with torch.no_grad():
        for name, parameter in parameters.items():
            local(parameter).copy_(part_of(parameter, tensors[f"weights.{name}"]))
    state = _unflatten(tensors, facts["optimizer"])
    order = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in state["state"].items():
        parameter = order[index]
        for key, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                values[key] = like(parameter, part_of(parameter, value))
    optimizer.load_state_dict(state)
    if average is not None:
        own = {
            name: like(parameter, part_of(parameter, tensors[f"average.{name}"]))
            for name, parameter in parameters.items()
        }
        average.restore(own, facts["average_updates"])
    return Position(step=facts["step"], run_id=facts["run_id"])


def keep_noise(folder: Path, *, step: int, state: Mapping[str, Tensor]) -> None:
    """Keep the state of the run's noise after attempt ``step``; on the disk when this returns."""
    files.operator_folder(folder)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in state.items()}
    content = save({**tensors, _STEP: torch.tensor(step)})
    files.write_file(folder / NOISE, content, mode=files.OPERATOR_FILE)


def read_noise(folder: Path, *, least_step: int) -> dict[str, Tensor]:
    """The state of the run's noise; empty if none was kept and none is due.

    Args:
        folder: of the run's checkpoints.
        least_step: the attempt after which it must have been kept.

    Raises:
        FailureError: it is missing, damaged or older: noise of released steps would come again.
    """
    path, state, step = folder / NOISE, dict[str, Tensor](), 0
    hint = "put the latest file back; without it this run cannot go on"
    try:
        if path.exists():
            state = load(path.read_bytes())
            step = int(state.pop(_STEP))
    except (OSError, KeyError, SafetensorError) as error:
        raise FailureError(
            f"the state of the noise at {path} cannot be read: {in_short(error)}", hint=hint
        ) from error
    if step < least_step:
        raise FailureError(
            f"the state of the noise at {path} is of step {step}, and steps up to {least_step} may "
            "have been released: going on from there would use their noise again",
            hint=hint,
        )
    return state


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _flatten(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as tensors by name, and its numbers."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        numbers[str(index)] = {}
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                numbers[str(index)][key] = value
    return tensors, {"numbers": numbers, "groups": state["param_groups"]}


def _unflatten(tensors: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {
        int(index): dict(values) for index, values in facts["numbers"].items()
    }
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": facts["groups"]}
