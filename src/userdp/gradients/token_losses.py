r"""Cross-entropy of each token, chunk by chunk: nothing as large as the logits is kept beside them.

torch's own `cross_entropy` keeps the logarithms of all probabilities for the backward pass, and
makes two more tensors of that size there. At a vocabulary of 256 k that is 131 MB a copy for each
row of 128 tokens, and decides what fits into a pass. Here two numbers are kept for each token
besides the logits themselves, which their layer handed out anyway,

.. math:: m = \max_j x_j, \qquad s = \log \sum_j e^{x_j - m},

from which :math:`\ell = s - (x_y - m)` and :math:`\partial \ell / \partial x_j = e^{x_j - m - s} -
[j = y]`: the formulas of torch's kernels, in the same order of operations. Chunks are of whole
tokens, so that how they are cut changes nothing but memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch.overrides import handle_torch_function, has_torch_function

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
        losses, most, logs = (logits.new_empty(len(logits), dtype=dtype) for _ in range(3))
        for chunk in _chunks(logits):
            numbers = logits[chunk].to(dtype)
            most[chunk] = numbers.amax(1)
            shifted = numbers - most[chunk, None]
            label = labels[chunk]
            own = shifted.gather(1, label.clamp(min=0)[:, None])[:, 0]
            logs[chunk] = shifted.exp_().sum(1).log_()
            losses[chunk] = torch.where(label == IGNORED, 0, logs[chunk] - own)
        ctx.save_for_backward(logits, labels, most, logs)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, labels, most, logs = ctx.saved_tensors
        # Who watches the pass saw the logits and their type already, and a look at each operation
        # of each chunk takes longer than a small one does.
        with torch._C.DisableTorchFunction():
            weights = torch.where(labels == IGNORED, 0, gradient)
            to_logits = torch.empty_like(logits)
            same = logits.dtype == most.dtype
            for chunk in _chunks(logits):
                numbers = logits[chunk] if same else logits[chunk].to(most.dtype)
                part = torch.sub(numbers, most[chunk, None], out=to_logits[chunk] if same else None)
                weight = weights[chunk, None]
                part.sub_(logs[chunk, None]).exp_().mul_(weight)
                part.scatter_add_(1, labels[chunk].clamp(min=0)[:, None], -weight)
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
