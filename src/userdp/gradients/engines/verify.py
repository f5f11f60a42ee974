"""Check the batched engines against the reference, once for each model, on made-up rows."""

from __future__ import annotations

import logging
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from userdp.gradients import reference
from userdp.gradients.clipping import squared_norm
from userdp.gradients.coupling import evaluating, require_rows_apart
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.one_pass import NotCoveredError, one_pass_sum
from userdp.gradients.losses import Loss
from userdp.gradients.made_up import CANNOT_RUN, RAGGED, made_up
from userdp.gradients.models import trainable_parameters
from userdp.gradients.units import Units

_log = logging.getLogger(__name__)
_Answers: TypeAlias = dict[tuple[bool, tuple[tuple[str, torch.dtype], ...]], bool]
_known: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Loss, _Answers]] = WeakKeyDictionary()


def agrees_with_reference(
    model: nn.Module, loss: Loss, *, masked: bool, largest: tuple[int, int] | None = None
) -> bool:
    """Whether the book-keeping engine agrees with the reference on made-up ragged rows.

    Asked once for each model, loss (with a mask and without) and set of trainable parameters, in
    evaluation mode, on units of two shapes, with formed and with Gram matrix norms; then
    remembered. It is the test of the rules' arithmetic and of what no rule covers. Which row owns
    what is not left to it: every pass proves that for itself (`engines.rows`).

    Of the passes of ``largest`` rows and tokens it is asked whether they keep rows apart.

    No row of anybody's is read, so neither the answer nor a refusal depends on data.

    Raises:
        UseError: the model or the loss couples rows.
    """
    require_rows_apart(model, loss, masked=masked, largest=largest)
    parameters = trainable_parameters(model)
    key = (masked, tuple((name, p.dtype) for name, p in parameters.items()))
    known = _known.setdefault(model, WeakKeyDictionary()).setdefault(loss, {})
    if key not in known:
        device = next(iter(parameters.values())).device
        probes = [made_up(model, shape, masked=masked, device=device) for shape in RAGGED]
        with evaluating(model):
            answers = [_agrees(model, loss, probe) for probe in probes]
        if False not in answers and None in answers:
            return False  # asked anew once the weights give a gradient that tells
        known[key] = all(answers)
        if not known[key]:
            _log.warning(
                "the book-keeping engine has no exact rule for this model; "
                "the slower reference engine is used"
            )
    return known[key]


def _agrees(model: nn.Module, loss: Loss, probe: Units) -> bool | None:
    """None where the probe says nothing: a gradient that is zero, or not finite."""
    # Wrong layouts are off by far more than what bfloat16 rounds.
    close = 0.03
    try:
        exact = reference.clipped_sum(model, loss, probe, l2_clip_norm=1e15)
        bound = float(exact.norms.min()) / 2
        if exact.non_finite or not 1e-6 < bound < 1e15:
            return None
        exact = reference.clipped_sum(model, loss, probe, l2_clip_norm=bound)
        for form in Form:
            ours = one_pass_sum(model, loss, probe, l2_clip_norm=bound, form=form)
            apart = squared_norm(ours.value[name] - v for name, v in exact.value.items()) ** 0.5
            norms_agree = ((ours.norms - exact.norms).abs() <= close * exact.norms).all()
            if not (bool(norms_agree) and apart <= 2 * close * bound):
                return False
    except (NotCoveredError, *CANNOT_RUN):
        return False
    return True
