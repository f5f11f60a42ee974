"""Whether the batched engine agrees with the reference on made-up rows.

Whether the rules' arithmetic is right, and what no rule covers, is a matter of the model's code.
The weights and the made-up rows are nobody's data: neither is the answer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.certificate.made_up import CANNOT_RUN, FEW_ROWS, RAGGED, Answers, made_up
from userdp.gradients.clipping import clip_factors, squared_norm
from userdp.gradients.engines.batched import sum_of_passes
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.reference import mean_gradient
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.losses import Loss
from userdp.gradients.model_randomness import known_randomness
from userdp.gradients.models import trainable_parameters
from userdp.gradients.precision import is_narrow
from userdp.gradients.sums import ClippedSum
from userdp.out_of_memory import ran_out_of_memory

_log = logging.getLogger(__name__)
_known: Answers[str | None] = Answers()

_CLOSE = 1e-4
"""Relative, of a unit's contribution. A rule that is wrong for a layout is off by far more."""

_LARGER = 5e-3
"""By how much a norm may be larger than it is: on made-up rows that do not cancel, less than this
is added for rounding (`rules.grams`; up to 7e-4 was seen on a CPU, and accelerators add four times
as much). The contribution is shorter then, which is no matter here."""

_CLOSE_IN_FEW_BITS = 0.05
"""The same in bfloat16, where it is the rules alone that are asked about."""

_PLACES = 2
"""Units of a pass. Of each, gradients of half of the parameters are formed."""


def why_not_batched(model: nn.Module, loss: Loss, *, masked: bool) -> str | None:
    """Why units of this model may not share passes; None where they may.

    Asked of each model, loss (with a mask and without) and set of trainable parameters, on ragged
    units of two shapes: in the model's own mode for a certificate, and without dropout for equal
    sums, each parameter's norms once from formed gradients and once from Gram matrices.

    Args:
        model: at the weights at which it will compute.
        loss: per-row loss.
        masked: whether it is given targets.
    """
    parameters = trainable_parameters(model)
    key = (masked, model.training, tuple((name, p.dtype) for name, p in parameters.items()))
    known = _known.of(model, loss)
    if key in known:
        return known[key]
    device = next(iter(parameters.values())).device
    with known_randomness("made-up rows"):
        for shape in RAGGED:
            probe = Task(
                model=model,
                loss=loss,
                units=made_up(model, shape, masked=masked, device=device),
                l2_clip_norm=1.0,
                micro_batch=FEW_ROWS,
                parts=1,
                places=_PLACES,
            )
            try:
                found = _disagreement(probe)
            except NotCoveredError as error:
                found = f"of this model, {error}"
            except CANNOT_RUN as error:
                if ran_out_of_memory(error):
                    raise
                found = f"made-up rows raise {type(error).__name__}"
            if found == _SAYS_NOTHING:
                return found  # asked anew once the weights give a gradient that tells
            if found is not None:
                break
    known[key] = found
    return found


_SAYS_NOTHING = "the gradient of made-up rows is zero or not finite, so that it tells nothing"


def _disagreement(probe: Task) -> str | None:
    if probe.model.training:
        sum_of_passes(probe, strict=True)
    with evaluating(probe.model):
        norms = _norms(probe)
        bound = float(norms.min()) / 2
        if not 1e-6 < bound < 1e15 or not bool(norms.isfinite().all()):
            return _SAYS_NOTHING
        task = probe.but(l2_clip_norm=bound)
        close = _CLOSE_IN_FEW_BITS if any(map(is_narrow, task.dtypes)) else _CLOSE
        for form in _both_forms(task.parameters):
            ours = sum_of_passes(task, form=form, strict=True)
            larger, apart = ours.norms / norms, _apart(ours, task)
            del ours  # not beside the next one
            norms_agree = ((larger >= 1 - close) & (larger <= 1 + close + _LARGER)).all()
            if not (bool(norms_agree) and apart <= 2 * close * bound):
                return "some layer's per-unit rule and plain autograd disagree on made-up rows"
    return None


def _both_forms(parameters: Mapping[str, Tensor]) -> tuple[dict[str, Form], dict[str, Form]]:
    """Twice: what one forms for each unit, the other has Gram matrices of.

    Halves of about the same size, so that neither needs memory for all at once.
    """
    first: dict[str, Form] = {}
    sizes = dict.fromkeys(Form, 0)
    for name, parameter in sorted(parameters.items(), key=lambda item: -item[1].numel()):
        first[name] = min(Form, key=lambda form: sizes[form])
        sizes[first[name]] += parameter.numel()
    other = {Form.FORMED: Form.GHOST, Form.GHOST: Form.FORMED}
    return first, {name: other[form] for name, form in first.items()}


def _norms(task: Task) -> Tensor:
    """Of the reference's gradients, float64, (units,); unit by unit, and no sum of them."""
    norms = []
    for rows in task.units:
        gradient, _, _ = mean_gradient(task, *rows)
        norms.append(math.sqrt(squared_norm(gradient)))
        del gradient  # not beside the next unit's
    return torch.tensor(norms, dtype=torch.float64)


def _apart(ours: ClippedSum, task: Task) -> float:
    """How far a sum is from the reference's gradients, scaled as its own norms say.

    Unit by unit: the question comes before the first step, and must not be what decides how much
    memory training needs.
    """
    factors = clip_factors(ours.norms.square(), l2_clip_norm=task.aim).tolist()
    for factor, rows in zip(factors, task.units, strict=True):
        gradient, _, _ = mean_gradient(task, *rows)
        for value, part in zip(ours.value.values(), gradient, strict=True):
            value.sub_(part, alpha=factor)
        del gradient  # not beside the next unit's
    return math.sqrt(squared_norm(ours.value.values()))
