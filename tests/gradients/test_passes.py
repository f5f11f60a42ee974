"""What is asked of a model before the first step covers every pass that a step can make."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from userdp.gradients.engines.passes import largest_passes, rows_per_pass
from userdp.gradients.units import Units


def empty(width: int) -> Units:
    return Units(
        input_ids=torch.zeros(0, width, dtype=torch.int64),
        lengths=torch.zeros(0, dtype=torch.int64),
        offsets=torch.zeros(1, dtype=torch.int64),
    )


@given(
    micro_batch=st.integers(1, 3000),
    seq_len=st.integers(1, 3000),
    unit_rows=st.integers(1, 64),
    width=st.integers(1, 3000),
)
def test_every_pass_fits_into_one_that_was_asked_of(micro_batch, seq_len, unit_rows, width):
    width = min(width, seq_len)
    asked = largest_passes(micro_batch, seq_len, unit_rows=unit_rows, cut=True)
    rows = min(micro_batch, max(rows_per_pass(empty(width), micro_batch), unit_rows))
    assert any(rows <= most and width <= longest for most, longest in asked)
    assert all(r * w <= 2 * 1024 or r <= unit_rows for r, w in asked)
