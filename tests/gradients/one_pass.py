"""The passes of the batched engines without their fallback: there an error is an error."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from userdp.gradients import ClippedSum, Loss, Units
from userdp.gradients.engines import Engine, one_pass
from userdp.gradients.engines.forms import Form


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
    return Engine(partial(one_pass.sum_of_passes, form=form, strict=strict))(
        model, loss, units, **options
    )
