r"""Cross-entropy of each token, chunk by chunk: nothing as large as the logits is kept beside them.

torch's own `cross_entropy` keeps the logarithms of all probabilities for the backward pass, and
makes two more tensors of that size there. At a vocabulary of 256 k that is 131 MB a copy for each
row of 128 tokens, and decides what fits into a pass. Here the probabilities are formed twice from
the logits, which their layer handed out anyway: by `log_softmax` for the losses, of a chunk that is
let go at once, and by `softmax` for the gradient, in the very tensor that is answered. Both kernels
take a token's logits through the cache once, and that is as fast as keeping them. Chunks are of
whole tokens, so that how they are cut changes nothing but memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import handle_torch_function, has_torch_function

from userdp.gradients.modes import unwatched

_CHUNK = 1 << 18
"""Numbers of a chunk on a CPU: they stay near the caches."""

_DEVICE_CHUNK = 1 << 26
"""The same on an accelerator, where each chunk has to be launched: 256 MB of float32."""

IGNORED = -100
"""The label of a token whose loss is 0."""


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each token, in float32 (float64 for float64 logits).

    Guarantee: a token's loss, and the gradient of its logits, are functions of its own logits and
    label.

    Args:
        logits: (..., vocabulary), of any floating dtype.
        labels: int64, (...); `IGNORED` for tokens that do not count.

    Returns:
        Of the shape of ``labels``, in nats; 0 where a label is ignored.

    Raises:
        ValueError: the shapes do not fit. In another shape a label would stand at another place of
            the result than its logits do, perhaps at another row's.
    """
    if has_torch_function((logits, labels)):  # rows are followed through it as through torch's own
        return handle_torch_function(token_losses, (logits, labels), logits, labels)
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels must have the shape {tuple(logits.shape[:-1])} of the logits' places, got "
            f"{tuple(labels.shape)}"
        )
    if functorch.peek_interpreter_stack() is not None:  # ``vmap`` traces torch's functions alone
        wide = logits if logits.dtype == torch.float64 else logits.float()
        flat = F.cross_entropy(
            wide.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return flat.view(labels.shape)
    flat = _apply(logits.flatten(0, -2), labels.flatten())
    return flat.view(labels.shape)


class _TokenLosses(torch.autograd.Function):
    """Of (tokens, vocabulary) and (tokens,)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        places = labels.clamp(min=0)[:, None]
        losses = logits.new_empty(len(logits), dtype=dtype)
        for chunk in _chunks(logits):
            logs = torch.log_softmax(logits[chunk], 1, dtype=dtype)
            losses[chunk] = logs.gather(1, places[chunk])[:, 0]
        ctx.save_for_backward(logits, labels)
        return torch.where(labels == IGNORED, 0, losses.neg_())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        # Who watches the pass saw the logits and their type already, and a look at each operation
        # of each chunk takes longer than a small one does.
        with unwatched():
            weights = torch.where(labels == IGNORED, 0, gradient)[:, None]
            places = labels.clamp(min=0)[:, None]
            to_logits = torch.empty_like(logits)
            same = logits.dtype == gradient.dtype
            for chunk in _chunks(logits):
                if same:
                    part = torch.softmax(logits[chunk], 1, out=to_logits[chunk])
                else:
                    part = torch.softmax(logits[chunk], 1, dtype=gradient.dtype)
                part.mul_(weights[chunk]).scatter_add_(1, places[chunk], -weights[chunk])
                if not same:
                    to_logits[chunk] = part
        return to_logits, None


_apply = cast(Callable[[Tensor, Tensor], Tensor], _TokenLosses.apply)


def _chunks(logits: Tensor) -> Iterator[slice]:
    """Ranges of whole tokens."""
    most = _CHUNK if logits.device.type == "cpu" else _DEVICE_CHUNK
    step = max(1, most // max(1, logits.shape[1]))
    for begin in range(0, len(logits), step):
        yield slice(begin, begin + step)
