"""One model trains in one private run at a time.

A run asks what its model descends from when it begins. Another run that trains the same tensors
meanwhile, over other people's text, would put what it learns into weights whose ledger says nothing
of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import local


class HeldModel:
    """The model of an open run, until `close`.

    Args:
        model: that the run trains.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model: nn.Module | None = model
        _open.add(self)

    def close(self) -> None:
        """Let go of the model; twice does no harm."""
        self.model = None


_open: weakref.WeakSet[HeldModel] = weakref.WeakSet()


def require_free(model: nn.Module) -> None:
    """Refuse a model of which an open run of this process trains a part, or the other way round.

    What is compared is memory, as it is now: models that share tensors, by tying or as adapters
    over one base, are one model in what they share. Two that only read the same frozen tensors may
    train at the same time.

    Raises:
        UseError: names the way out.
    """
    trained, held = _trained(model), _all(model)
    for other in (one.model for one in list(_open)):
        if other is None:
            continue
        if trained & _all(other) or held & _trained(other):
            raise UseError(
                "another private run of this process is open, and trains weights of this model: "
                "each would release what the other has learned, and neither claim would say so",
                hint="end the other run first (leave its block, or call its close()), or train a "
                "copy.deepcopy of the model",
            )


def _trained(model: nn.Module) -> set[int]:
    return _places(trainable_parameters(model).values())


def _all(model: nn.Module) -> set[int]:
    return _places((*model.parameters(), *model.buffers()))


def _places(tensors: Iterable[Tensor]) -> set[int]:
    """Where their numbers lie, in the memory of any device; of empty tensors nowhere."""
    return {local(one).untyped_storage().data_ptr() for one in tensors if one.numel()}
