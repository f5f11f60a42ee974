"""May units share a pass? If they may, they are computed so; each by itself otherwise.

Whether a rule's arithmetic is right, and what no rule covers, is a matter of the model's code. So
it is asked on made-up rows (`disagreement`): neither these nor the weights are anybody's data. The
answer speaks of shapes and of layers by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from userdp.gradients.certificate.coupling import evaluating, require_rows_apart
from userdp.gradients.certificate.made_up import (
    CANNOT_RUN,
    Answers,
    Shape,
    circumstances,
    failed,
    made_up,
    most_tokens,
)
from userdp.gradients.clip_factors import ClippedSum, clip_factors, squared_norm
from userdp.gradients.engines import reference
from userdp.gradients.engines.batched import sum_of_passes
from userdp.gradients.engines.comparing import NotCoveredError
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.uses import Form, Forms
from userdp.gradients.model_randomness import GeneratorStates, known_randomness
from userdp.gradients.precision import is_narrow

_LOW_RANK = 256
"""Adapters have matrices of at most this rank."""

_FEW = 0.05
"""Adapters are at most this part of all parameters: forming their gradients then costs little."""

_PROBES = (Shape((2, 2, 2), (6, 4, 4, 6, 7, 3)), Shape((3, 3), (7, 5, 9, 6, 4, 8)))
"""Ragged units. In the first, 4 rows of 16 targets share a pass: targets that were told apart by
division would go to the wrong rows. One of its passes has a place that is nobody's."""

_PLACES = 2
"""Units of a pass. Of each, gradients of half of the parameters are formed: the question must not
be what decides how much memory training needs."""

_SMALL = 1e-3
"""The clip norm: the gradient of nearly every model is larger, and what is not clipped is compared
as it is."""

_CLOSE = 1e-4
"""Relative, of a unit's contribution. A rule that is wrong for a layout is off by far more."""

_LARGER = 5e-3
"""By how much a norm may be larger than it is: on made-up rows that do not cancel, less than this
is added for rounding (`engines.rounding`; up to 7e-4 was seen on a CPU, and accelerators add four
times as much). The contribution is shorter then, which is no matter here."""

_CLOSE_IN_FEW_BITS = 0.05
"""The same in bfloat16, where it is the rules alone that are asked about."""

SAYS_NOTHING = "the gradient of made-up rows is zero or not finite, so that it tells nothing"

_known: Answers[str | None] = Answers()


def auto(task: Task) -> ClippedSum:
    """The sum in passes that units share, as far as these are certified.

    Whether the reference engine computes it may depend on who is in the cohort. It clips where
    batches aim: with one aim for both, that changes nobody's contribution by more than rounding.
    """
    if why_alone(task) is not None:
        total = reference.sum_of_units(task.but(l2_clip_norm=task.aim))
        total.sensitivity = float(task.l2_clip_norm)
        return total
    begun = GeneratorStates.read()
    for ahead in tries(task.units.lengths.device):
        total = sum_of_passes(task.but(ahead=ahead), form_of(task), strict=False)
        if total.settle():
            break
        begun.load()  # the same masks, whatever was not usable
    return total


def tries(device: torch.device) -> tuple[bool, ...]:
    """Whether the host queues passes ahead, as on an accelerator; then once more, without, where a
    unit turns out not to be usable."""
    return (True, False) if device.type != "cpu" else (False,)


def form_of(task: Task) -> Form | None:
    """All gradients of adapters are formed; else each layer chooses by cost."""
    low_rank = all(p.dim() < 2 or min(p.shape) <= _LOW_RANK for p in task.parameters.values())
    few = sum(task.sizes.values()) <= _FEW * sum(p.numel() for p in task.model.parameters())
    return Form.FORMED if low_rank and few else None


def why_alone(task: Task) -> str | None:
    """Why each unit needs passes of its own; None where several units may share a pass.

    Args:
        task: what is to be computed.

    Raises:
        UseError: the model or the loss couples rows, or what it says of a unit depends on others.
    """
    require_rows_apart(task.model, task.loss, masked=task.masked)
    if task.units.input_ids.shape[1] > most_tokens(task.model):
        return (
            "rows are longer than the model's configuration says it is made for, and made-up rows "
            "that long cannot tell what it does with them"
        )
    return disagreement(task)


def disagreement(
    task: Task,
    *,
    sums: Callable[[Task, Forms], ClippedSum] = sum_of_passes,
    gradient: Callable[[Task], list[Tensor]] = lambda task: reference.mean_gradient(task)[0],
    square: Callable[[Iterable[Tensor]], float] = squared_norm,
) -> str | None:
    """Why units of this model may not share passes; None where they may.

    Asked once of each model, loss (with a mask and without) and set of trainable parameters, on
    ragged units of two shapes: in the model's own mode for a certificate, and there for equal sums
    too (where coins are thrown, without dropout), each parameter's norms once from formed gradients
    and once from Gram matrices.

    Args:
        task: whose model is asked, at the weights at which it will compute; none of its rows is.
        sums: the sum of passes of a task, in these forms.
        gradient: of a task of one unit, by plain autograd.
        square: squared norm of what these return.
    """
    key = circumstances(task.model, task.parameters, masked=task.masked)
    known = _known.of(task.model, task.loss)
    if key in known:
        return known[key]
    found, device = None, task.units.lengths.device
    with known_randomness("made-up rows"):
        for shape in _PROBES:
            probe = Task(
                model=task.model,
                loss=task.loss,
                units=made_up(task.model, shape, masked=task.masked, device=device),
                l2_clip_norm=_SMALL,
                micro_batch=_PLACES * shape.rows[0],
                parts=1,
            )
            try:
                found = found or _disagreement(probe, sums, gradient, square)
            except NotCoveredError as error:
                found = str(error)
            except CANNOT_RUN as error:
                found = failed(error)
    if found != SAYS_NOTHING:  # asked anew once the weights give a gradient that tells
        known[key] = found
    return found


def _disagreement(
    probe: Task,
    sums: Callable[[Task, Forms], ClippedSum],
    gradient: Callable[[Task], list[Tensor]],
    square: Callable[[Iterable[Tensor]], float],
) -> str | None:
    """`disagreement` on these rows. One gradient and one sum at a time, not beside the next one."""
    close = _CLOSE_IN_FEW_BITS if any(map(is_narrow, probe.dtypes)) else _CLOSE
    first, other = both_forms(probe.parameters)
    each = [probe.but(units=probe.units.select(at, at + 1)) for at in range(len(probe.units))]
    ours, begun = sums(probe, first), GeneratorStates.read()
    gradient(each[0])
    drew = GeneratorStates.read() != begun
    with evaluating(probe.model) if drew else nullcontext():
        for form in (first, other):
            if drew or form is not first:
                del ours
                ours = sums(probe, form)
            factors = clip_factors(ours.norms.square(), l2_clip_norm=probe.aim).tolist()
            agree, least = True, probe.l2_clip_norm
            for one, told, factor in zip(each, ours.norms.tolist(), factors, strict=True):
                alone = gradient(one)
                norm = math.sqrt(square(alone))
                if not 1e-6 < norm < 1e15:
                    return SAYS_NOTHING
                agree &= 1 - close <= told / norm <= 1 + close + _LARGER
                for value, part in zip(ours.value.values(), alone, strict=True):
                    value.sub_(part, alpha=factor)
                del alone, value, part  # not beside the next one
                least = min(least, norm)
            if not (agree and math.sqrt(square(ours.value.values())) <= 2 * close * least):
                return "some layer's per-unit rule and plain autograd disagree on made-up rows"
    return None


def both_forms(parameters: Mapping[str, Tensor]) -> tuple[dict[str, Form], dict[str, Form]]:
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
