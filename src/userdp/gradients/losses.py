r"""Per-row losses: each row's number depends on that row's own tokens and nothing else.

**Token losses** (`token_losses`): nothing as large as the logits is kept beside them.
torch's own `cross_entropy` keeps the logarithms of all probabilities for the backward pass, and
makes two more tensors of that size there. At a vocabulary of 256 k that is 131 MB a copy for each
row of 128 tokens, and decides what fits into a pass. Here the probabilities are formed twice from
the logits, which their layer handed out anyway: by `log_softmax` for the losses, of a chunk that is
let go at once, and by `softmax` for the gradient, in the very tensor that is answered. Both kernels
take a token's logits through the cache once, and that is as fast as keeping them. Chunks are of
whole tokens, so that how they are cut changes nothing but memory.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.overrides import handle_torch_function, has_torch_function

from userdp.core.errors import UseError, UserdpError, ran_out_of_memory
from userdp.gradients.modes import unwatched

Loss: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""``loss(model, input_ids, lengths)`` → (rows,): one number per row, from that row alone.

``input_ids`` is (rows, width) and its contents beyond each row's length are arbitrary. The result
is attached to the model's graph even where it is 0. Normalise by nothing that other rows decide.

A loss that can also count marked tokens alone is a `MaskedLoss`.
"""


class LossError(UseError):
    """What a loss answered is nothing that a backward pass can begin with.

    On made-up rows it refuses the loss. Where only somebody's rows make a loss answer so, it is
    forgiven as an error is (`may_be_of_rows`).
    """


class MaskedLoss(Protocol):
    """A `Loss` that takes ``targets``: bool, (rows, width), which tokens count; None for all."""

    def __call__(
        self, model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None, /
    ) -> Tensor: ...


def row_losses(
    loss: Loss, model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None
) -> Tensor:
    """What ``loss`` says of each row, (rows,); ``targets`` is passed on where it is not None."""
    if targets is None:
        return loss(model, input_ids, lengths)
    return cast(MaskedLoss, loss)(model, input_ids, lengths, targets)


def checked_losses(
    loss: Loss, model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None
) -> Tensor:
    """`row_losses`, for a backward pass.

    Raises:
        LossError: the loss is not one number per row, or no trainable parameter moves it.
    """
    losses = row_losses(loss, model, input_ids, lengths, targets)
    if not isinstance(losses, Tensor):
        raise LossError(
            f"the loss must return a tensor of one number per row, got {type(losses).__name__}"
        )
    if losses.shape != lengths.shape:
        raise LossError(
            f"the loss must return one number per row, shape {tuple(lengths.shape)}, got "
            f"{tuple(losses.shape)}: a loss averaged over the batch makes one user's gradient "
            "depend on the others"
        )
    if not losses.requires_grad:
        raise LossError(
            "the loss does not depend on any trainable parameter, so its gradient is nothing",
            hint="do not detach the loss, nor compute it under torch.no_grad()",
        )
    return losses


_DEVICE_WORDS = re.compile(
    r"(CUDA|CUDA driver|cuDNN|cuBLAS|cuSPARSE|HIP|MIOpen|NCCL) error\b", re.I
)
"""How the message of a device that failed begins, in a plain `RuntimeError`; further on they may be
the words of somebody whose text a message quotes."""


def may_be_of_rows(error: BaseException) -> bool:
    """Whether a model or a loss may have raised ``error`` for what somebody's rows say.

    A loss that answers for them with something that is no loss (`LossError`) is such an error too.

    It is not where userdp refuses something, where somebody interrupts, where memory runs out
    (`userdp.gradients.engines.engine`), or where a device or another process failed: what such a
    device computes next says nothing.

    >>> may_be_of_rows(ValueError("cannot parse")), may_be_of_rows(KeyboardInterrupt())
    (True, False)
    >>> may_be_of_rows(MemoryError()), may_be_of_rows(RuntimeError("CUDA error: unspecified"))
    (False, False)
    >>> may_be_of_rows(RuntimeError("cannot parse 'a CUDA error'"))
    True
    """
    if isinstance(error, LossError):
        return True
    if not isinstance(error, Exception) or isinstance(error, UserdpError):
        return False
    if ran_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
        return False
    if dist.is_available() and isinstance(error, dist.DistError):
        return False
    return not (isinstance(error, RuntimeError) and _DEVICE_WORDS.match(str(error)))


def require_masked(loss: Loss) -> None:
    """Refuse a loss that would ignore a loss mask.

    Raises:
        UseError: ``loss`` does not take ``targets``.
    """
    try:
        inspect.signature(loss).bind(None, None, None, None)
    except TypeError:
        raise UseError(
            "the store marks which tokens the loss counts, and this loss takes no targets: it "
            "would count the prompts too",
            hint="give it a fourth argument `targets`, as causal_lm_loss has",
        ) from None


def causal_lm_loss(
    model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
) -> Tensor:
    r"""Mean next-token cross-entropy of each row over that row's own target tokens.

    .. math:: \ell_r = \frac{1}{|T_r|} \sum_{t \in T_r} -\log p(x_{r,t} \mid x_{r,<t})

    where T_r is all of row r but its first token, or those of them that ``targets`` marks.

    Guarantee: row r's loss is a function of the model, of row r's first ``lengths[r]`` tokens and
    of their marks. No denominator counts other rows' tokens or padding; positions arrive with shape
    (rows, length), so that no gradient is summed over rows inside the model; padding is token 0,
    and its loss is never formed into the sum.

    Padding stands behind a row's tokens, where causal attention never looks, so no mask is given:
    `transformers` would ask it whether *any* row of the pass is padded, and take another path if
    so. A model that looks ahead is refused on made-up rows (`certificate.coupling`).

    Args:
        model: a causal language model of Hugging Face's interface: takes ``input_ids``,
            ``position_ids``, ``use_cache``; answers with ``.logits``.
        input_ids: int64, (rows, width); beyond a row's length, anything.
        lengths: int64, (rows,), in [0, width].
        targets: bool, (rows, width), which tokens are predicted for the loss; all are read as
            context. None: all. A row's first token is never one.

    Returns:
        (rows,) in nats, float32 (float64 for a float64 model). A row without a target, such as one
        of fewer than two tokens, has loss 0 and gradient zero.

    The last token is a target only, so it is never fed in: with causal attention that changes
    nothing but the cost.

    Source: the loss of one example in Charles et al. 2024, Section 2; Algorithms 1 and 2.
    """
    if input_ids.shape[1] < 2:
        missing = (0, 2 - input_ids.shape[1])
        input_ids = F.pad(input_ids, missing)
        targets = None if targets is None else F.pad(targets, missing)
    rows, width = input_ids.shape
    positions = torch.arange(width - 1, device=input_ids.device).expand(rows, width - 1)
    real = positions < (lengths - 1)[:, None]
    counted = real if targets is None else real & targets[:, 1:]
    inputs = torch.where(real, input_ids[:, :-1], 0)
    labels = torch.where(counted, input_ids[:, 1:], IGNORED)
    logits = model(input_ids=inputs, position_ids=positions, use_cache=False).logits
    counts = lengths - 1 if targets is None else counted.sum(1)
    return token_losses(logits, labels).sum(1) / counts.clamp(min=1)


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
    return _apply(logits.flatten(0, -2), labels.flatten()).view(labels.shape)


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
            for chunk in _chunks(logits):
                part = torch.softmax(logits[chunk], 1, dtype=gradient.dtype)
                part.mul_(weights[chunk]).scatter_add_(1, places[chunk], -weights[chunk])
                to_logits[chunk] = part
        return to_logits, None


_apply = cast(Callable[[Tensor, Tensor], Tensor], _TokenLosses.apply)


def _chunks(logits: Tensor) -> Iterator[slice]:
    """Ranges of whole tokens."""
    most = _CHUNK if logits.device.type == "cpu" else _DEVICE_CHUNK
    step = max(1, most // max(1, logits.shape[1]))
    for begin in range(0, len(logits), step):
        yield slice(begin, begin + step)
