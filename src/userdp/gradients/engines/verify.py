"""Check the batched engines against the reference, once for each model, on a few rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from userdp.gradients import reference
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.one_pass import NotCoveredError, one_pass_sum
from userdp.gradients.losses import Loss
from userdp.gradients.models import trainable_parameters
from userdp.gradients.units import Units

_log = logging.getLogger(__name__)
_Answers: TypeAlias = dict[tuple[bool, tuple[tuple[str, torch.dtype], ...]], bool]
_known: WeakKeyDictionary[nn.Module, WeakKeyDictionary[Loss, _Answers]] = WeakKeyDictionary()


def agrees_with_reference(model: nn.Module, loss: Loss, units: Units) -> bool:
    """Whether the book-keeping engine agrees with the reference on a few rows of ``units``.

    Asked once for each model, loss (with a mask and without) and set of trainable parameters, in
    evaluation mode, with formed and with Gram matrix norms; then remembered. It guards against
    what no rule can see: a layer that is fed positions first and rows second, or one that mixes
    rows. The answer is a property of the model's code, not of anybody's data. While no two
    units with a gradient have been seen the answer is no, so that the reference engine computes.
    """
    parameters = trainable_parameters(model)
    masked = units.targets is not None
    key = (masked, tuple((name, p.dtype) for name, p in parameters.items()))
    known = _known.setdefault(model, WeakKeyDictionary()).setdefault(loss, {})
    if key not in known:
        probe = _probe(units)
        agreed = None
        if probe is not None:
            with _evaluating(model):
                agreed = _agrees(model, loss, probe)
        if agreed is None:
            return False
        known[key] = agreed
        if not agreed:
            _log.warning(
                "the book-keeping engine has no exact rule for this model; "
                "the slower reference engine is used"
            )
    return known[key]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, whose masks differ from call to call."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _probe(units: Units) -> Units | None:
    """A unit of up to two rows and a unit of one, cut from the first that have a target."""
    has_target = (units.target_counts() > 0).tolist()
    rows: list[int] = []
    sizes: list[int] = []
    for unit in range(len(units)):
        begin, end = int(units.offsets[unit]), int(units.offsets[unit + 1])
        taken = [r for r in range(begin, end) if has_target[r]][: 2 - len(sizes)]
        if taken:
            rows += taken
            sizes.append(len(taken))
        if len(sizes) == 2:
            return Units(
                input_ids=units.input_ids[rows],
                lengths=units.lengths[rows],
                offsets=torch.tensor([0, *sizes]).cumsum(0),
                targets=None if units.targets is None else units.targets[rows],
            )
    return None


def _agrees(model: nn.Module, loss: Loss, probe: Units) -> bool | None:
    """None where the probe says nothing: a gradient that is zero, or not finite."""
    # Wrong layouts are off by far more than what bfloat16 rounds.
    close = 0.03
    exact = reference.clipped_sum(model, loss, probe, l2_clip_norm=1e15)
    bound = float(exact.norms.min()) / 2
    if exact.non_finite or not 1e-6 < bound < 1e15:
        return None
    exact = reference.clipped_sum(model, loss, probe, l2_clip_norm=bound)
    for form in Form:
        try:
            ours = one_pass_sum(model, loss, probe, l2_clip_norm=bound, form=form)
        except NotCoveredError:
            return False
        apart = squared_norm(ours.value[name] - v for name, v in exact.value.items()) ** 0.5
        norms_agree = ((ours.norms - exact.norms).abs() <= close * exact.norms).all()
        if not (bool(norms_agree) and apart <= 2 * close * bound):
            return False
    return True
