"""What is asked of a model before the first step covers every pass that a step can make."""

import gc
import weakref
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from userdp.errors import UseError
from userdp.gradients import Units, causal_lm_loss, coupling, get_engine
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.engines import choice, one_pass, passes
from userdp.gradients.engines.passes import largest_passes, rows_per_pass, widths


@given(
    micro_batch=st.integers(1, 3000),
    seq_len=st.integers(1, 3000),
    unit_rows=st.integers(1, 64),
)
def test_every_pass_fits_into_one_that_was_asked_of(micro_batch, seq_len, unit_rows):
    """And none that is asked of is larger than the largest one."""
    asked = largest_passes(micro_batch, seq_len, unit_rows=unit_rows, cut=True)
    for width in widths(seq_len):
        most = rows_per_pass(width, micro_batch, torch.device("cpu"))
        rows = min(micro_batch, max(most, unit_rows))
        assert any(rows <= most and width <= longest for most, longest in asked)
    assert all(rows * width <= 1024 or rows <= max(1, unit_rows) for rows, width in asked)


@pytest.mark.parametrize("name", ["auto", "bookkeeping"])
@pytest.mark.parametrize("sizes", [[], [1], [4, 3, 1], [1] * 40])
@pytest.mark.parametrize("width", [5, 33, 64])
@pytest.mark.pitfall(number=47)
def test_invariant_9_nothing_is_asked_because_of_who_was_drawn(monkeypatch, name, sizes, width):
    """A question may be refused, and that is seen: so all are asked before the first step."""
    shape = GPT2Config(vocab_size=11, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    model, asked = GPT2LMHeadModel(shape).eval(), largest_passes(64, 64, unit_rows=4, cut=True)
    require_rows_apart(model, causal_lm_loss, masked=False, largest=asked)
    monkeypatch.setattr(coupling, "_coupling", Mock(side_effect=UseError("asked again")))
    lengths = torch.full((sum(sizes),), width)
    drawn = Units(
        input_ids=torch.ones(sum(sizes), 64, dtype=torch.int64),  # as wide as the store's rows
        lengths=lengths,
        offsets=torch.tensor([0, *sizes]).cumsum(0),
    )
    get_engine(name)(model, causal_lm_loss, drawn, l2_clip_norm=1.0, micro_batch=64)


def test_twin_where_nobody_counts_as_a_whole_micro_batch_is_caught(monkeypatch):
    monkeypatch.setattr(choice, "_largest", lambda task, traced: [(task.micro_batch, 64)])
    with pytest.raises(UseError, match="asked again"):
        test_invariant_9_nothing_is_asked_because_of_who_was_drawn(monkeypatch, "auto", [], 64)


def test_nothing_of_a_pass_lies_beside_the_next_one(monkeypatch):
    """What layers keep is as large as their activations: two passes' would be the peak."""
    begun, alive = [], []

    class Watched(batched._Pass):
        def __init__(self, *args):
            alive.append([one for one in begun if one() is not None])
            begun.append(weakref.ref(self))
            super().__init__(*args)
            begun.append(weakref.ref(self._tape))

    monkeypatch.setattr(one_pass, "_Pass", Watched)
    monkeypatch.setattr(passes, "_CPU_TOKENS", 8)
    shape = GPT2Config(vocab_size=11, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    units = Units.from_rows([[[1, 2, 3, 4]]] * 6)
    gc.disable()  # nor may it hang on a collection
    try:
        get_engine("auto")(
            GPT2LMHeadModel(shape).eval(), causal_lm_loss, units, l2_clip_norm=1.0, micro_batch=6
        )
    finally:
        gc.enable()
    assert len(alive) >= 3
    assert not any(alive)
