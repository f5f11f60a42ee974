"""Check the batched engines against the reference, once for each model, on made-up rows."""

from __future__ import annotations

import logging
from dataclasses import replace

from torch import nn

from userdp.gradients.clipping import squared_norm
from userdp.gradients.coupling import evaluating
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.one_pass import sum_of_passes
from userdp.gradients.engines.reference import sum_of_units
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.losses import Loss
from userdp.gradients.made_up import CANNOT_RUN, RAGGED, Answers, made_up
from userdp.gradients.models import trainable_parameters

_log = logging.getLogger(__name__)
_known: Answers[bool] = Answers()

_CLOSE = 0.03
"""Relative. A rule that is wrong for a layout is off by far more than what bfloat16 rounds."""


def agrees_with_reference(model: nn.Module, loss: Loss, *, masked: bool) -> bool:
    """Whether the book-keeping engine agrees with the reference on made-up ragged rows.

    Asked once for each model, loss (with a mask and without) and set of trainable parameters, in
    evaluation mode, on units of two shapes, with formed and with Gram matrix norms; then
    remembered. It is the test of the rules' arithmetic and of what no rule covers. Which row owns
    what is not left to it: every pass proves that for itself (`engines.rows`).

    No row of anybody's is read, so the answer does not depend on data.
    """
    parameters = trainable_parameters(model)
    key = (masked, tuple((name, p.dtype) for name, p in parameters.items()))
    known = _known.of(model, loss)
    if key not in known:
        device = next(iter(parameters.values())).device
        with evaluating(model):
            answers = [
                _agrees(Task(model=model, loss=loss, units=probe, l2_clip_norm=1e15))
                for shape in RAGGED
                for probe in [made_up(model, shape, masked=masked, device=device)]
            ]
        if False not in answers and None in answers:
            return False  # asked anew once the weights give a gradient that tells
        known[key] = all(answers)
        if not known[key]:
            _log.warning(
                "the book-keeping engine has no exact rule for this model; "
                "the slower reference engine is used"
            )
    return known[key]


def _agrees(unclipped: Task) -> bool | None:
    """None where the probe says nothing: a gradient that is zero, or not finite."""
    try:
        exact = sum_of_units(unclipped)
        bound = float(exact.norms.min()) / 2
        if exact.non_finite or not 1e-6 < bound < 1e15:
            return None
        task = replace(unclipped, l2_clip_norm=bound)
        exact = sum_of_units(task)
        for form in Form:
            ours = sum_of_passes(task, form=form)
            apart = squared_norm(ours.value[name] - v for name, v in exact.value.items()) ** 0.5
            norms_agree = ((ours.norms - exact.norms).abs() <= _CLOSE * exact.norms).all()
            if not (bool(norms_agree) and apart <= 2 * _CLOSE * bound):
                return False
    except (NotCoveredError, *CANNOT_RUN):
        return False
    return True
