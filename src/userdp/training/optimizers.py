"""The optimizer of a run: built over what trains, its learning rate, and whether it moves weights.

Every optimizer sees only the noisy gradient, so each is post-processing, free of charge.
"""

from __future__ import annotations

import inspect
import math

import torch
from torch import Tensor, nn

from userdp.core.errors import FailureError, UseError
from userdp.gradients import trainable_parameters
from userdp.training.adam_bc import AdamBC
from userdp.training.config import OptimizerName, Schedule, TrainConfig

_FLOOR = 0.05
"""Least rate of the cosine, in parts of the peak: at 0 the last step's epsilon buys nothing."""
_WATCHED = 4096
"""Numbers of each parameter that `MovementCheck` keeps."""


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer over exactly the model's trainable parameters.

    Matrices decay, biases and norms do not: two groups, as is usual for language models.
    """
    parameters = list(trainable_parameters(model).values())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    rate, betas = config.learning_rate, (0.9, 0.98)
    match config.optimizer:
        case OptimizerName.ADAMW:
            # One kernel for the whole update: on a CPU a quarter of the time.
            fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
            return torch.optim.AdamW(groups, lr=rate, betas=betas, fused=fused)
        case OptimizerName.ADAM_BC:
            return AdamBC(groups, lr=rate, betas=betas, floor=config.bias_correction_floor)
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=rate, momentum=0.9)


def set_noise_std(optimizer: torch.optim.Optimizer, noise_std: float) -> None:
    """Tell an optimizer that corrects for it how much noise is in ``.grad``; a public number."""
    for group in optimizer.param_groups:
        if "noise_std" in group:
            group["noise_std"] = noise_std


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use ``rate`` in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def learning_rate(config: TrainConfig, *, step: int, steps: int) -> float:
    """The rate of step ``step`` (from 1) of ``steps``; greater than 0 at every one.

    >>> config = TrainConfig(learning_rate=1.0, warmup_steps=2, schedule=Schedule.LINEAR)
    >>> [learning_rate(config, step=t, steps=6) for t in range(1, 7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    span = max(1, steps - config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps - 1) / span)
    factor = {
        Schedule.FOLLOWING: 1.0,
        Schedule.CONSTANT: 1.0,
        Schedule.LINEAR: 1.0 - done,
        Schedule.COSINE: _FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * done)) / 2,
    }
    return config.learning_rate * factor[config.schedule]


def require_same_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that holds other tensors than the model trains, in either direction.

    Frozen weights of the model may be among them (``AdamW(model.parameters())``): an optimizer
    leaves alone whatever has no gradient, so those that an earlier loop left there are dropped.

    Raises:
        UseError: names what is missing. An ε would be spent on parameters that never move, or
            something would move that never was clipped. Or a step needs a closure.
    """
    ours = trainable_parameters(model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UseError(
            f"{type(optimizer).__name__} wants a closure, and a private step has one gradient",
            hint="take an optimizer that steps by gradients, such as torch.optim.AdamW",
        )
    missing = [name for name, parameter in ours.items() if id(parameter) not in held]
    if missing:
        raise UseError(
            f"the optimizer does not hold {len(missing)} of the model's {len(ours)} trainable "
            f"parameters ({', '.join(missing[:3])}…): they would never move",
            hint="build the optimizer after adapters were attached and the model was moved",
        )
    others = held - set(map(id, model.parameters()))
    if others:
        raise UseError(
            f"the optimizer holds {len(others)} tensors that are no parameters of the model",
            hint="give it only those of this model: others would move without clipping or noise",
        )
    for parameter in model.parameters():
        if not parameter.requires_grad and id(parameter) in held:
            parameter.grad = None


def warning_of_half_precision(model: nn.Module) -> str | None:
    """A warning where weights train in half precision; None where none of them does.

    An update of Adam is about as large as the learning rate. A weight of bfloat16 keeps 8 bits, so
    that one that is 500 times as large as the learning rate stays where it is.
    """
    dtypes = {parameter.dtype for parameter in trainable_parameters(model).values()}
    if not dtypes & {torch.bfloat16, torch.float16}:
        return None
    return (
        "weights train in half precision: most updates are rounded away, and epsilon is spent on "
        "weights that stand still. Load them with from_pretrained(…, dtype=torch.float32); "
        "bf16=True computes in bfloat16 all the same"
    )


class MovementCheck:
    """Notices an update that changed nothing.

    Keeps a part of each trainable parameter; noise reaches every coordinate, so an update that was
    applied shows in any part. A learning rate of 0 (a warm-up may begin there) excuses a step.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._groups = optimizer.param_groups
        self._excused = self._stands_still()
        self._parameters = list(trainable_parameters(model).values())
        self._before = [_part(p).clone() for p in self._parameters]

    def require_moved(self) -> bool:
        """Whether a parameter has changed since the check began; False for an excused step.

        Raises:
            FailureError: none has changed, though the learning rate is not 0.
        """
        if not all(map(torch.equal, map(_part, self._parameters), self._before)):
            return True
        if self._excused or self._stands_still():
            return False
        raise FailureError(
            "no trainable parameter moved in the update: epsilon would be spent for nothing",
            hint="call optimizer.step() once per step, clear .grad behind it, and check the rate",
        )

    def _stands_still(self) -> bool:
        return all(float(group.get("lr", 1.0)) == 0 for group in self._groups)


def _part(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:_WATCHED]


def require_unstepped(optimizer: torch.optim.Optimizer) -> None:
    """`UseError` where an optimizer holds a state of steps that no run has paid for.

    One that is set up when it is made, as Adagrad's, counts no step yet.
    """
    states = (state for state in optimizer.state.values() if state)
    if any(float(state.get("step", 1)) > 0 for state in states):
        raise UseError(
            "the optimizer has a state of earlier steps, perhaps on people's text",
            hint="make a new optimizer for a new run",
        )
