"""What is asked of a model before the first step covers every pass that a step can make."""

import gc
import weakref

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.engines import batched, passes
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


def test_nothing_of_a_pass_lies_beside_the_next_one(monkeypatch):
    """What layers keep is as large as their activations: two passes' would be the peak."""
    begun, alive = [], []

    class Watched(batched._Pass):
        def __init__(self, *args):
            alive.append([one for one in begun if one() is not None])
            begun.append(weakref.ref(self))
            super().__init__(*args)
            begun.append(weakref.ref(self._tape))

    monkeypatch.setattr(batched, "_Pass", Watched)
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
