"""The loss of a row comes from that row's own tokens; its cross-entropies are torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.tiny import FAMILIES, masked, ragged, tiny
from userdp.gradients import Units, causal_lm_loss, losses
from userdp.gradients.certificate.operations import FUNCTIONS
from userdp.gradients.certificate.places import CONSTANT, Place
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.losses import IGNORED, token_losses


def by_hand(model: nn.Module, row: Tensor, marks: Tensor) -> Tensor:
    """Mean of -log p(token | the tokens before it) over marked tokens, the row alone."""
    logits = model(input_ids=row[None]).logits[0]
    surprises = [
        -torch.log_softmax(logits[t - 1], -1)[row[t]] for t in range(1, len(row)) if marks[t]
    ]
    return torch.stack(surprises).mean() if surprises else logits.sum() * 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("units_of", [Units.from_rows, masked])
def test_each_row_loses_the_mean_surprise_of_its_own_targets(units_of, family):
    model, units = tiny(family, torch.float64), units_of(ragged([3, 1, 2]))
    found = causal_lm_loss(model, units.input_ids, units.lengths, units.targets)
    marks = torch.ones_like(units.input_ids) if units.targets is None else units.targets
    each = zip(units.input_ids, marks, units.lengths.tolist(), strict=True)
    expected = torch.stack([by_hand(model, row[:n], marked[:n]) for row, marked, n in each])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_whatever_stands_in_the_padding_changes_neither_loss_nor_gradient(family: str) -> None:
    model, lengths = tiny(family), torch.tensor([3, 6, 1, 0])
    ids = torch.randint(0, 23, (4, 8), generator=torch.Generator().manual_seed(1))
    own, results = torch.arange(8) < lengths[:, None], []
    for tokens in (ids, torch.where(own, ids, -12345), torch.where(own, ids, 10**9)):
        found = causal_lm_loss(model, tokens, lengths)
        results.append([found, *torch.autograd.grad(found.sum(), list(model.parameters()))])
    for one, two, three in zip(*results, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.pitfall(number=15)
def test_positions_arrive_with_shape_rows_by_length() -> None:
    model, shapes = tiny(), []
    model.register_forward_pre_hook(
        lambda module, args, given: shapes.extend(
            given[name].shape for name in ("input_ids", "position_ids")
        ),
        with_kwargs=True,
    )
    causal_lm_loss(model, torch.ones(3, 6, dtype=torch.int64), torch.tensor([6, 2, 4]))
    assert shapes == [(3, 5)] * 2


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
)
@pytest.mark.parametrize("chunk", [1, 25, 1 << 18])
def test_cross_entropies_in_chunks_are_torchs_whatever_the_chunks(monkeypatch, dtype, close, chunk):
    """The oracle is float64, of all logits at once; losses of bfloat16 logits are float32."""
    monkeypatch.setattr(losses, "_CHUNK", chunk)
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(3, 5, 11, generator=generator, dtype=torch.float64)
    logits = logits.to(dtype).requires_grad_()
    labels = torch.randint(0, 11, (3, 5), generator=generator)
    labels[0, 1] = labels[2, 3] = IGNORED
    weights = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    flat = logits.double().flatten(0, 1)
    exact = F.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="none")
    found, exact = token_losses(logits, labels), exact.view(labels.shape)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    wide = min(close, 1e-6)
    torch.testing.assert_close(found.double(), exact, rtol=wide, atol=10 * wide)
    (ours,), (theirs,) = (
        torch.autograd.grad((each * weights).sum(), logits) for each in (found, exact)
    )
    torch.testing.assert_close(ours, theirs, rtol=close, atol=10 * close)


def test_invariant_3_no_proof_stands_on_labels_of_another_shape() -> None:
    """Read in order, the losses of one row's tokens would stand at the places of several rows."""
    logits, labels = torch.zeros(4, 3, 1, 7), torch.zeros(1, 3, 4, dtype=torch.int64)
    rows = Rows(3)
    rows.mark(logits, Place(1))
    fitting = rows.mark(labels.reshape(4, 3, 1), CONSTANT)
    assert FUNCTIONS[token_losses](rows, logits, rows.mark(labels, CONSTANT)) is None
    assert FUNCTIONS[token_losses](rows, logits, fitting) == Place(1)
