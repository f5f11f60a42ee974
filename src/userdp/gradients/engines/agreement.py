"""Check the batched engines against the reference on made-up rows, while the weights stay alike.

Two things are asked at once. Whether the rules' arithmetic is right, and what no rule covers, is a
matter of the model's code. How far a unit's rounding hangs on who shares its pass is a matter of
its weights: float32's 1e-6 grows a thousandfold and more where training diverges or attention is
saturated, and with it what leaving one unit out moves in all others. So the answer holds only for
weights of about the size at which it was found. The weights and the made-up rows are nobody's data:
neither is the answer.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from userdp.gradients.clipping import clip_factors, squared_norm
from userdp.gradients.coupling import evaluating
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.one_pass import sum_of_passes
from userdp.gradients.engines.precision import aim, is_narrow
from userdp.gradients.engines.reference import mean_gradient
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.engines.vmap import sum_of_batches
from userdp.gradients.losses import Loss
from userdp.gradients.made_up import CANNOT_RUN, FEW_ROWS, RAGGED, Answers, made_up
from userdp.gradients.model_randomness import known_randomness
from userdp.gradients.models import trainable_parameters
from userdp.gradients.sums import ClippedSum
from userdp.gradients.transfers import told
from userdp.out_of_memory import ran_out_of_memory

_log = logging.getLogger(__name__)
_known: Answers[tuple[bool, Tensor]] = Answers()

_CLOSE = 1e-4
"""Relative, of a unit's contribution. A rule that is wrong for a layout is off by far more. The
margin of the clip, 1e-3, covers M units of relative rounding 1e-4 for all M up to 1e5 if their
directions are independent, and for 10 whatever they are (docs/engines.md)."""

_LARGER = 5e-3
"""By how much a norm may be larger than it is: on made-up rows that do not cancel, less than this
is added for rounding (`rules.grams`; up to 7e-4 was seen on a CPU, and accelerators add four times
as much). The contribution is shorter then, which is no matter here."""

_CLOSE_IN_FEW_BITS = 0.05
"""The same in bfloat16, where it is the rules alone that are asked about: there units share passes
only where rounding hangs on nobody (`engines.own_bits`)."""

_PLACES = 2
"""Units of a pass. Of each, gradients of half of the parameters are formed."""

_GROWN = 2.0
"""Asked anew once a parameter's norm changed by this factor: a few times in a training run."""


def agrees_with_reference(
    model: nn.Module,
    loss: Loss,
    *,
    masked: bool,
    traced: bool = False,
    later: list[Callable[[], bool]] | None = None,
) -> bool:
    """Whether a batched engine agrees with the reference on made-up ragged rows.

    Asked of each model, loss (with a mask and without) and set of trainable parameters, in
    evaluation mode, on units of two shapes; then remembered until some parameter's norm has
    doubled or halved. Which row owns what is not left to it: every pass proves that for itself
    (`engines.rows`).

    Args:
        model: at the weights at which it will compute.
        loss: per-row loss.
        masked: whether it is given targets.
        traced: ask of ``vmap``; else of the book-keeping engine, with formed and with Gram
            matrix norms.
        later: takes the question whether the weights are still alike, where there is an answer
            that holds if they are; the host need not wait for them then.
    """
    parameters = trainable_parameters(model)
    sizes = _sizes(parameters.values())
    key = (masked, traced, tuple((name, p.dtype) for name, p in parameters.items()))
    known = _known.of(model, loss)
    if key in known:
        answer, before = known[key]
        if later is not None:
            later.append(lambda: _alike(before, sizes()))
            return answer
        if _alike(before, sizes()):
            return answer
    device = next(iter(parameters.values())).device
    computes = (sum_of_batches,) if traced else _in_both_forms(parameters)
    with evaluating(model), known_randomness("made-up rows"):
        answers = [
            _agrees(
                Task(
                    model=model,
                    loss=loss,
                    units=probe,
                    l2_clip_norm=1.0,
                    micro_batch=FEW_ROWS,
                    parts=1,
                    places=_PLACES,
                ),
                computes,
            )
            for shape in RAGGED
            for probe in [made_up(model, shape, masked=masked, device=device)]
        ]
    if False not in answers and None in answers:
        return False  # asked anew once the weights give a gradient that tells
    known[key] = (all(answers), sizes())
    if not all(answers):
        _log.warning(
            "the batched engine has no exact rule for this model, or its weights are so large that "
            "rounding is not small any more; the slower reference engine is used"
        )
    return all(answers)


def _sizes(parameters: Iterable[Tensor]) -> Callable[[], Tensor]:
    """What tells the norm of each, on the host; each device is asked and read once."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        alike[parameter.device, parameter.dtype].append(parameter.detach())
    found = []
    for (_, dtype), here in alike.items():
        norms = torch._foreach_norm(here, dtype=torch.promote_types(dtype, torch.float32))
        found.append(told(torch.stack([norm.float() for norm in norms])))
    return lambda: torch.cat([read() for read in found])


def _alike(before: Tensor, now: Tensor) -> bool:
    """Whether no norm grew or shrank by `_GROWN`; NaN is like nothing."""
    return bool(((now <= _GROWN * before) & (before <= _GROWN * now)).all())


def _agrees(probe: Task, computes: Sequence[Callable[[Task], ClippedSum]]) -> bool | None:
    """None where the probe says nothing: a gradient that is zero, or not finite."""
    try:
        norms = _norms(probe)
        bound = float(norms.min()) / 2
        if not 1e-6 < bound < 1e15 or not bool(norms.isfinite().all()):
            return None
        task = probe.but(l2_clip_norm=bound)
        narrow = any(map(is_narrow, task.dtypes))
        close = _CLOSE_IN_FEW_BITS if narrow else _CLOSE
        for compute in computes:
            ours = compute(task)
            larger, apart = ours.norms / norms, _apart(ours, task)
            del ours  # not beside the next one
            norms_agree = ((larger >= 1 - close) & (larger <= 1 + close + _LARGER)).all()
            if not (bool(norms_agree) and apart <= 2 * close * bound):
                return False
    except (NotCoveredError, *CANNOT_RUN) as error:
        if ran_out_of_memory(error):
            raise
        return False
    return True


def _in_both_forms(parameters: Mapping[str, Tensor]) -> list[Callable[[Task], ClippedSum]]:
    """The book-keeping engine twice: what one forms for each unit, the other has Gram matrices of.

    Halves of about the same size, so that neither needs memory for all at once.
    """
    first: dict[str, Form] = {}
    sizes = dict.fromkeys(Form, 0)
    for name, parameter in sorted(parameters.items(), key=lambda item: -item[1].numel()):
        first[name] = min(Form, key=lambda form: sizes[form])
        sizes[first[name]] += parameter.numel()
    other = {Form.FORMED: Form.GHOST, Form.GHOST: Form.FORMED}
    second = {name: other[form] for name, form in first.items()}
    return [partial(sum_of_passes, form=forms, strict=True) for forms in (first, second)]


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
    factors = clip_factors(ours.norms.square(), l2_clip_norm=aim(task)).tolist()
    for factor, rows in zip(factors, task.units, strict=True):
        gradient, _, _ = mean_gradient(task, *rows)
        for value, part in zip(ours.value.values(), gradient, strict=True):
            value.sub_(part, alpha=factor)
        del gradient  # not beside the next unit's
    return math.sqrt(squared_norm(ours.value.values()))
