"""Where the weights come from that training begins with; see `userdp.claim`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from userdp.claim.lineage import Lineage
from userdp.claim.weights import lineage_of_base, weights_digest
from userdp.data.store import UserStore
from userdp.gradients.shards import is_sharded
from userdp.ledger import StoreLedger

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
        name: where they were just loaded from; by default what `transformers` noted in the model,
            which only counts as far as the weights are still those of that place.
    """
    noted = str(getattr(model, "name_or_path", "") or "")
    released = StoreLedger(store.path).history().released
    # No process holds all weights of a sharded model, and this one asks by itself.
    sharded = any(is_sharded(tensor) for tensor in model.parameters())
    return lineage_of_base(
        noted if name is None else name,
        None if sharded else digest_of_weights(model),
        [(one.weights, one.lineage) for one in released],
        loaded=name is not None,
    )


def _tensors(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...], bytes]]:
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor) and tensor.dtype in _NAMES:
            values = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            digest = hashlib.sha256(values.data).digest()
            yield _NAMES[tensor.dtype], tuple(tensor.shape), digest
