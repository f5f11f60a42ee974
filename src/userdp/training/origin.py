"""Where the weights come from that training begins with; see `userdp.claim`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from userdp.claim.lineage import Lineage
from userdp.claim.weights import lineage_of_base, weights_digest
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.plan import MadeFor, Plan
from userdp.training.config import TrainConfig
from userdp.training.models import NEW

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


def digest_of_weights(model: nn.Module) -> str:
    """The digest of a model's parameters and buffers, as `userdp.claim.weights.digest_of` has it.

    That of the saved model is the same, where it is saved in the dtype that it is in.
    """
    return weights_digest(_tensors(model))


def lineage_of_weights(model: nn.Module, store: UserStore, name: str | None = None) -> Lineage:
    """What a model's weights descend from, before they are trained on ``store``.

    Args:
        model: at the weights that training begins with.
        store: that is trained on; its ledger knows what was released of its people.
        name: where they were loaded from; by default what `transformers` noted in the model.
    """
    known = str(getattr(model, "name_or_path", "") or "") if name is None else name
    released = StoreLedger(store.path).history().released
    return lineage_of_base(
        known, digest_of_weights(model), [(one.weights, one.lineage) for one in released]
    )


def ledger_id(store: UserStore) -> str:
    """The random id of a store's ledger, which stays the same when records are appended."""
    return StoreLedger(store.path).place.id


def made_with(base: nn.Module, config: TrainConfig) -> MadeFor:
    """What norms and plans are made for, the store left out.

    Args:
        base: the model of ``config``, without adapters.
        config: a new model's weights follow its seed, which does not matter: they have no digest.
    """
    adapters = (
        f"rank {config.lora_rank}, alpha {config.lora_alpha}, of {list(config.lora_targets)}"
        if config.lora_rank is not None
        else None
    )
    weights = None if config.model == NEW else digest_of_weights(base)
    return MadeFor(weights=weights, adapters=adapters)


def require_made_for(plan: Plan, store: UserStore, made: MadeFor) -> None:
    """Refuse a plan whose norms were measured on another store, model or adapters.

    Raises:
        UseError: says which of them differs.
    """
    wanted = plan.made_for
    if wanted is None:
        return
    differs = {
        "store": wanted.store not in (None, ledger_id(store)),
        "base model": None not in (wanted.weights, made.weights) and wanted.weights != made.weights,
        "adapters": wanted.adapters != made.adapters,
    }
    for what, other in differs.items():
        if other:
            raise UseError(
                f"the plan was made from gradient norms of another {what}: its group size, cohort "
                "and clip norm say nothing of this one",
                hint="measure again with userdp probe, and plan with those norms",
            )


def _tensors(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor) and tensor.dtype in _NAMES:
            values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            digest = hashlib.sha256(values.data).digest()
            yield _NAMES[tensor.dtype], tuple(tensor.shape), digest
