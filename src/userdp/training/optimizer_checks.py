"""Is the optimizer the one of this model, and do its updates arrive? (Pitfall 9.)"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.gradients import trainable_parameters

_WATCHED = 4096


def require_same_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that holds other tensors than the model trains, in either direction.

    Raises:
        UseError: names what is missing. An ε would be spent on parameters that never move, or
            something would move that never was clipped.
    """
    ours = {id(p): name for name, p in trainable_parameters(model).items()}
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for key, name in ours.items() if key not in theirs]
    if missing:
        raise UseError(
            f"the optimizer does not hold {len(missing)} of the model's {len(ours)} trainable "
            f"parameters ({', '.join(missing[:3])}…): epsilon would be spent on weights that "
            "never move",
            hint="build the optimizer after adapters were attached and the model was moved: "
            "it must hold the model's own tensors",
        )
    if theirs - set(ours):
        raise UseError(
            f"the optimizer holds {len(theirs - set(ours))} tensors that are not trainable "
            "parameters of the model: they would move without clipping or noise",
            hint="give the optimizer only the parameters with requires_grad of this model",
        )


class MovementCheck:
    """Notices an update that changed nothing.

    Keeps a part of each trainable parameter; noise reaches every coordinate, so an update that was
    applied shows in any part. A learning rate of 0 (a warm-up may begin there) excuses a step.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._excused = not self._has_learning_rate()
        self._parameters = list(trainable_parameters(model).values())
        self._before = [_part(p).clone() for p in self._parameters]

    def require_moved(self) -> bool:
        """Whether a parameter has changed since the check began; False for an excused step.

        Raises:
            FailureError: none has changed, though the learning rate is not 0.
        """
        for parameter, before in zip(self._parameters, self._before, strict=True):
            if not torch.equal(_part(parameter), before):
                return True
        if self._excused or not self._has_learning_rate():
            return False
        raise FailureError(
            "no trainable parameter moved in the update: epsilon would be spent and nothing "
            "would learn",
            hint="call optimizer.step() once per step, do not clear .grad before it, and check the "
            "learning rate against the parameters' precision",
        )

    def _has_learning_rate(self) -> bool:
        return any(float(group.get("lr", 1.0)) != 0 for group in self._optimizer.param_groups)


def _part(parameter: Tensor) -> Tensor:
    return parameter.detach().reshape(-1)[:_WATCHED]
