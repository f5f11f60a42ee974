"""The passes of the batched engines without their fallback: there an error is an error."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from userdp.gradients import ClippedSum, Loss, Units
from userdp.gradients.engines import Engine, batched
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.passes import Pass, PassShape


def one_pass_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    form: Form | None = None,
    strict: bool = True,
    **options: Any,
) -> ClippedSum:
    """The book-keeping engine, which is not asked here whether units may share a pass.

    ``strict``: a pass that cannot serve is an error, too.
    """
    return Engine(partial(batched.sum_of_passes, form=form, strict=strict))(
        model, loss, units, **options
    )


honest_of = Pass.of


def as_they_come(self: Pass, units: Units) -> Units:
    """A broken twin: as many places as units, and a pass as wide as its longest row."""
    tight = PassShape(len(self.numbers), self.shape.rows, self.shape.width)
    parts = [
        honest_of(Pass((number,), PassShape(1, tight.rows, tight.width)), units)
        for number in self.numbers
    ]
    longest = max(int(part.lengths.max()) for part in parts)
    return Units(
        input_ids=torch.cat([part.input_ids for part in parts])[:, :longest],
        lengths=torch.cat([part.lengths for part in parts]),
        offsets=torch.arange(tight.units + 1) * tight.rows,
    )
