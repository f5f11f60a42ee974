"""The weights of a model that do not train: those of a base under adapters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.gradients import trainable_parameters
from userdp.training.origin import lineage_of_weights


def lineage_of_frozen(model: nn.Module, store: UserStore, name: str) -> Lineage:
    """What a model's frozen weights descend from: those of a base under new adapters.

    Args:
        model: whose trainable parameters are new, and descend from nobody.
        store: whose people the lineage is for.
        name: where the base was loaded from.
    """
    trained = {id(p) for p in trainable_parameters(model).values()}
    kept = model.state_dict(keep_vars=True)
    frozen = {n: t for n, t in kept.items() if id(t) not in trained}
    return lineage_of_weights(_Holder(frozen, name), store)


class _Holder(nn.Module):
    """Holds tensors, so that they can be asked what a model is asked."""

    def __init__(self, tensors: Mapping[str, Tensor], name_or_path: str = "") -> None:
        super().__init__()
        self.name_or_path = name_or_path
        for number, tensor in enumerate(tensors.values()):
            self.register_buffer(f"tensor_{number}", tensor.detach())
