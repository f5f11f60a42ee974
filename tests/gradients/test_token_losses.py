"""Cross-entropies in chunks are torch's own, to rounding, whatever the chunks are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from userdp.gradients import losses as module
from userdp.gradients.certificate.operations import FUNCTIONS
from userdp.gradients.certificate.places import CONSTANT, Place
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.losses import IGNORED, token_losses

CLOSE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-2}


def case(dtype: torch.dtype = torch.float64, scale: float = 5.0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels, and weights of the losses."""
    generator = torch.Generator().manual_seed(3)
    logits = scale * torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 11, (3, 5), generator=generator)
    labels[0, 1] = labels[2, 3] = IGNORED
    weights = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return logits.to(dtype).requires_grad_(), labels, weights


def by_torch(logits: Tensor, labels: Tensor) -> Tensor:
    """The oracle: in float64, all logits at once."""
    flat = logits.double().flatten(0, 1)
    each = F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="none")
    return each.view(labels.shape)


def require_torchs(dtype: torch.dtype, *, scale: float = 5.0) -> None:
    logits, labels, weights = case(dtype, scale)
    ours, theirs = token_losses(logits, labels), by_torch(logits, labels)
    close = CLOSE[dtype]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert ours.dtype == wide
    exact = {"rtol": CLOSE[wide], "atol": 10 * CLOSE[wide]}
    torch.testing.assert_close(ours.double(), theirs, **exact, msg="a loss is not torch's")
    (mine,) = torch.autograd.grad((ours * weights).sum(), logits)
    (other,) = torch.autograd.grad((theirs * weights).sum(), logits)
    assert mine.dtype == dtype
    message = "a gradient is not torch's"
    torch.testing.assert_close(mine, other, rtol=close, atol=10 * close, msg=message)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("chunk", [1, 25, 1 << 18])
def test_losses_and_gradients_are_torchs_whatever_the_chunks(monkeypatch, dtype, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    require_torchs(dtype)


@pytest.mark.parametrize("lost", ["first", "last"])
def test_twin_a_chunk_that_is_left_out_is_caught(monkeypatch, lost):
    honest = module._chunks

    def short(logits: Tensor) -> list[slice]:
        chunks = list(honest(logits))
        return chunks[1:] if lost == "first" else chunks[:-1]

    def forward_only(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        monkeypatch.setattr(module, "_chunks", short)
        try:
            return backward(ctx, gradient)
        finally:
            monkeypatch.setattr(module, "_chunks", honest)

    monkeypatch.setattr(module, "_CHUNK", 25)
    backward = module._TokenLosses.backward
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)  # not what memory held before
    monkeypatch.setattr(module._TokenLosses, "backward", staticmethod(forward_only))
    with pytest.raises(AssertionError, match="a gradient is not torch's"):
        require_torchs(torch.float64)
    monkeypatch.setattr(module._TokenLosses, "backward", staticmethod(backward))
    monkeypatch.setattr(module, "_chunks", short)
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    with pytest.raises(AssertionError, match="a loss is not torch's"):
        require_torchs(torch.float64)


def test_invariant_3_no_proof_stands_on_labels_of_another_shape() -> None:
    """Read in order, the losses of one row's tokens would stand at the places of several rows."""
    logits, labels = torch.zeros(4, 3, 1, 7), torch.zeros(1, 3, 4, dtype=torch.int64)
    rows = Rows(3)
    rows.mark(logits, Place(1))
    fitting = rows.mark(labels.reshape(4, 3, 1), CONSTANT)
    assert FUNCTIONS[token_losses](rows, logits, rows.mark(labels, CONSTANT)) is None
    assert FUNCTIONS[token_losses](rows, logits, fitting) == Place(1)
