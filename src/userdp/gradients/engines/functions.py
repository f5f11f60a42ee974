"""The autograd functions that stand in for torch's while a tape is watching, and their rules.

A rule answers None where it does not apply; torch's own function then runs, and a trainable
parameter in it is found by its ordinary gradient. A rule applies only to inputs whose first
dimension counts rows, or rows and positions flattened, by the code that made them (`engines.rows`):
a shape proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients.engines.places import Place

if TYPE_CHECKING:
    from userdp.gradients.engines.tape import Tape


_unwatched = torch._C.DisableTorchFunction
"""Within, no mode watches: the gradients' own arithmetic is not the model's."""


class Linear(torch.autograd.Function):
    """``x @ weight.T + bias``, or ``x @ weight + bias`` where ``transposed``."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        names: tuple[str | None, str | None],
        transposed: bool,
        tape: Tape,
    ) -> Tensor:
        """Same numbers as torch's."""
        ctx.names, ctx.transposed, ctx.tape = names, transposed, tape
        ctx.save_for_backward(x if names[0] is not None else None, weight)
        if not transposed:
            return F.linear(x, weight, bias)
        flat = x.reshape(-1, x.shape[-1])
        out = flat @ weight if bias is None else torch.addmm(bias, flat, weight)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient; the parameters' parts go to the tape."""
        (gy,) = gradients
        x, weight = ctx.saved_tensors
        name, bias_name = ctx.names
        gx: Tensor | None = None
        with torch.no_grad(), _unwatched():
            if ctx.needs_input_grad[1]:
                narrow = weight.to(gy.dtype)
                gx = gy @ narrow.T if ctx.transposed else gy @ narrow
            if name is not None:
                left, right = (x, gy) if ctx.transposed else (gy, x)
                ctx.tape.linear(name, left, right)
            if bias_name is not None:
                ctx.tape.vector(bias_name, ctx.tape.layout.summed(gy))
        return None, gx, None, None, None, None, None


class Embedding(torch.autograd.Function):
    """A table that is looked up."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        tokens: Tensor,
        weight: Tensor,
        padding: int | None,
        name: str,
        tape: Tape,
    ) -> Tensor:
        """Same numbers as torch's."""
        ctx.name, ctx.tape, ctx.padding = name, tape, padding
        ctx.save_for_backward(tokens)
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        """Hand over; the padding token has no gradient."""
        (tokens,) = ctx.saved_tensors
        (gy,) = gradients
        with torch.no_grad(), _unwatched():
            if ctx.padding is not None:
                gy = torch.where((tokens == ctx.padding)[..., None], 0, gy)
            ctx.tape.embedding(ctx.name, tokens, gy)
        return None, None, None, None, None, None


class LayerNorm(torch.autograd.Function):
    """Layer normalisation over the last dimension."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        names: tuple[str | None, str | None],
        tape: Tape,
    ) -> Tensor:
        """Same numbers as torch's."""
        ctx.names, ctx.tape = names, tape
        out, mean, rstd = torch.native_layer_norm(x, [x.shape[-1]], weight, bias, epsilon)
        ctx.save_for_backward(x, mean, rstd, weight, bias)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The input's gradient; per unit, the sums of gy x̂ and gy."""
        (gy,) = gradients
        x, mean, rstd, weight, bias = ctx.saved_tensors
        name, bias_name = ctx.names
        gx: Tensor | None = None
        with torch.no_grad(), _unwatched():
            if ctx.needs_input_grad[1]:
                gx = torch.ops.aten.native_layer_norm_backward(
                    gy.contiguous(),
                    x,
                    [x.shape[-1]],
                    mean,
                    rstd,
                    weight,
                    bias,
                    [True, False, False],
                )[0]
            if name is not None:
                normal = (x.to(rstd.dtype) - mean) * rstd
                ctx.tape.vector(name, ctx.tape.layout.summed(gy.to(rstd.dtype) * normal))
            if bias_name is not None:
                ctx.tape.vector(bias_name, ctx.tape.layout.summed(gy.to(rstd.dtype)))
        return None, gx, None, None, None, None, None


class PerRow(torch.autograd.Function):
    """A vector, once for each row: its gradient then arrives per row."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, vector: Tensor, shape: Sequence[int], tape: Tape, name: str
    ) -> Tensor:
        """(rows, 1, ..., width)."""
        ctx.name, ctx.tape = name, tape
        return vector.expand(shape).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        """Hand over the sums per unit."""
        with torch.no_grad(), _unwatched():
            gradient = gradients[0]
            wide = gradient if gradient.dtype == torch.float64 else gradient.float()
            ctx.tape.vector(ctx.name, ctx.tape.layout.summed(wide))
        return None, None, None, None, None


LINEAR: Callable[..., Tensor] = Linear.apply
EMBEDDING: Callable[..., Tensor] = Embedding.apply
LAYER_NORM: Callable[..., Tensor] = LayerNorm.apply
PER_ROW: Callable[..., Tensor] = PerRow.apply


def _linear(tape: Tape, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    names = tape.name_of(weight), tape.name_of(bias)
    if names == (None, None):
        return None
    stacked = _stacked(tape, x)
    if stacked is None or _needs_torch(weight, names[0]):
        return None
    if bias is not None and _needs_torch(bias, names[1]):
        return None
    plain_bias = None if bias is None else bias.detach()
    out: Tensor = LINEAR(tape.anchor, stacked, weight.detach(), plain_bias, names, False, tape)
    return _placed(tape, x, out.view(*x.shape[:-1], -1))


def _addmm(
    tape: Tape, bias: Tensor, x: Tensor, weight: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor | None:
    """`transformers`' Conv1D: rows and positions arrive flattened, rows first."""
    names = tape.name_of(weight), tape.name_of(bias)
    if names == (None, None) or (beta, alpha) != (1, 1) or bias.dim() != 1 or x.dim() != 2:
        return None
    stacked = _stacked(tape, x)
    if stacked is None or _needs_torch(weight, names[0]) or _needs_torch(bias, names[1]):
        return None
    out: Tensor = LINEAR(tape.anchor, stacked, weight.detach(), bias.detach(), names, True, tape)
    return _placed(tape, x, out.view(x.shape[0], -1))


def _embedding(
    tape: Tape,
    tokens: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    name = tape.name_of(weight)
    if name is None or max_norm is not None or scale_grad_by_freq:
        return None
    inner = _inner(tape, tokens)
    if inner is None:
        return None
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    stacked = tokens.view(tape.layout.rows, inner, *tokens.shape[1:])
    out: Tensor = EMBEDDING(tape.anchor, stacked, weight.detach(), padding_idx, name, tape)
    return _placed(tape, tokens, out.view(*tokens.shape, -1))


def _layer_norm(
    tape: Tape,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    names = tape.name_of(weight), tape.name_of(bias)
    stacked = None if names == (None, None) else _stacked(tape, x)
    if stacked is None:
        return None
    if weight is None or len(normalized_shape) != 1 or weight.dtype != x.dtype:
        return None
    if _needs_torch(weight, names[0]) or (bias is not None and _needs_torch(bias, names[1])):
        return None
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float32:
        return None
    out: Tensor = LAYER_NORM(
        tape.anchor,
        stacked,
        weight.detach(),
        None if bias is None else bias.detach(),
        eps,
        names,
        tape,
    )
    return _placed(tape, x, out.view(x.shape))


def _rms_norm(
    tape: Tape,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    name = tape.name_of(weight)
    if name is None or weight is None or len(normalized_shape) != 1 or not by_row(tape, x):
        return None
    shape = (tape.layout.rows, *[1] * (x.dim() - 2), x.shape[-1])
    per_row: Tensor = PER_ROW(tape.anchor, weight.detach(), shape, tape, name)
    return _placed(tape, x, F.rms_norm(x, normalized_shape, None, eps) * per_row)


def _inner(tape: Tape, x: Tensor) -> int | None:
    """How many indices of the first dimension belong to each row; None where it counts no rows.

    A constant of rows x ... (positions, say) is taken at its word: its values are nobody's, and
    `_placed` says whose each place is from here on, which the proof of the pass then checks.
    """
    rows = tape.layout.rows
    if x.dim() < 1:
        return None
    if rows == 1:
        return x.shape[0]
    place = tape.rows.place_of(x)
    if place is None:
        return None
    if place.constant:
        return 1 if x.dim() >= 2 and x.shape[0] == rows else None
    return place.inner if place.dim == 0 else None


def _stacked(tape: Tape, x: Tensor) -> Tensor | None:
    """``x`` as (rows, ..., width); also where rows and positions came flattened, rows first."""
    inner = None if x.dim() < 2 else _inner(tape, x)
    if inner is None:
        return None
    return x if inner == 1 else x.reshape(tape.layout.rows, inner, *x.shape[1:])


def by_row(tape: Tape, x: Tensor) -> bool:
    """Whether ``x`` is (rows, ..., width), each row's own."""
    return x.dim() >= 2 and x.shape[0] == tape.layout.rows and _inner(tape, x) == 1


def _placed(tape: Tape, x: Tensor, out: Tensor) -> Tensor:
    """``out``, each place of whose first dimension belongs to the row that it has in ``x``."""
    inner = _inner(tape, x)
    assert inner is not None
    return tape.rows.mark(out, Place(0, inner))


def _needs_torch(tensor: Tensor, name: str | None) -> bool:
    """Whether a gradient flows through ``tensor`` though it is none of the parameters."""
    return name is None and tensor.requires_grad


RULES: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
}
