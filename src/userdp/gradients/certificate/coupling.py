r"""Refuse a loss by which one row's number depends on another row, or on the order of units.

A loss that is divided by the batch's tokens, by its number of rows, by the width to which it is
padded, or that compares rows with each other, makes every user's gradient depend on who else is
there: leaving one user out then moves what all the others contribute, and C bounds none of it.

The question is asked on made-up ragged rows (`certificate.made_up`): each row's loss, and the
gradient of a weighted sum of them, must be the same whether the rows are computed together or each
alone; and a unit's gradient the same in another order of units, which a state that is not put back
or a generator out of reach would change. So neither the answer nor a refusal depends on anybody's
data. It is a check and no proof: passes that units share are certified (`engines.certify`), and the
reference engine computes each unit alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from userdp.core.errors import UseError
from userdp.gradients.certificate.made_up import (
    EQUAL,
    RAGGED,
    Answers,
    circumstances,
    made_up,
)
from userdp.gradients.certificate.state import State
from userdp.gradients.clip_factors import squared_norm
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.model_randomness import GeneratorStates, known_randomness, seeds
from userdp.gradients.models import require_uncoupled, trainable_parameters
from userdp.gradients.modes import eagerly, run_backward
from userdp.gradients.precision import dtypes_of, is_narrow
from userdp.gradients.units import Units

_apart: Answers[bool] = Answers()

_CLOSE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Relative. A batch's statistic moves a loss by tens of percents on these rows."""
_CLOSE_NARROW = 0.06

_SAME = 1e-3
"""Relative: devices add in another order each time; another mask moves a norm by far more."""


def require_rows_apart(
    model: nn.Module, loss: Loss, *, masked: bool, gradients: bool = True
) -> None:
    """Refuse a loss, or a model, that couples rows; asked once for each, on made-up rows.

    Args:
        model: in the mode in which it trains; rows are compared in evaluation mode.
        loss: per-row loss.
        masked: whether it will be given targets.
        gradients: whether to compare gradients too; a sharded model's are not formed here.

    Raises:
        UseError: says which number moved.
        Exception: whatever the model or the loss raises on made-up rows.
    """
    parameters = trainable_parameters(model)
    known, key = _apart.of(model, loss), circumstances(model, parameters, masked=masked)
    if key in known:
        return
    require_uncoupled(model)
    device = next(iter(parameters.values())).device
    ask = _Question(model, loss, parameters, gradients=gradients)
    with known_randomness("made-up rows"), eagerly():
        if gradients:
            ask.require_any_order(made_up(model, RAGGED[0], masked=masked, device=device))
        with evaluating(model):
            for shape in (*RAGGED, EQUAL):
                ask.require_apart(made_up(model, shape, masked=masked, device=device))
    known[key] = True


class _Question:
    def __init__(
        self, model: nn.Module, loss: Loss, parameters: Mapping[str, Tensor], *, gradients: bool
    ) -> None:
        self._model, self._loss, self._gradients = model, loss, gradients
        self._parameters = list(parameters.values())
        self._state = State(model, loss)

    def require_any_order(self, units: Units) -> None:
        """Refuse code that says something else of a unit in another order of units.

        As the reference engine computes them: from states of their own, and with what model and
        loss hold put back behind each.
        """
        begun, seeded = GeneratorStates.read(), seeds()
        norms: dict[int, list[float]] = {0: [], 1: []}
        for unit in (0, 1, 1, 0):
            begun.load()
            ran = self._run(units.select(unit, unit + 1), torch.ones(3))
            if ran is None:
                return
            norms[unit].append(math.sqrt(squared_norm(ran[1])))
            if seeds() != seeded:
                raise UseError(
                    "the model or the loss seeds a random number generator: its masks are then "
                    "known",
                    hint="do not seed inside the model or the loss",
                )
        for one, other in norms.values():
            if abs(one - other) > _SAME * max(one, other):
                raise UseError(
                    "the model's answer changes from one pass over the same rows to the next, "
                    "though all generators begin from the same states: it keeps a state, or draws "
                    "from a generator of its own, so that what it says of one user depends on "
                    "others",
                    hint="keep no state, and draw from torch's default generator, as "
                    "torch.nn.functional.dropout does",
                )

    def require_apart(self, units: Units) -> None:
        """Refuse code that says something else of rows together than of each alone."""
        count, begun = len(units.lengths), GeneratorStates.read()
        weights = 0.5 + torch.arange(count) / count
        together = self._run(units, weights)
        if together is None or GeneratorStates.read() != begun:  # not to compare coins
            return
        dtypes = dtypes_of(self._model, self._loss, masked=units.targets is not None)
        close = max(_CLOSE_NARROW if is_narrow(dtype) else _CLOSE[dtype] for dtype in dtypes)
        (losses, left), sizes = together, 0.0
        rows = replace(units, offsets=torch.arange(count + 1))
        for row in range(count):
            alone = self._run(rows.select(row, row + 1), weights[row : row + 1])
            if alone is None:
                return
            own, gradient = alone
            left = [a - b for a, b in zip(left, gradient, strict=True)]
            sizes += math.sqrt(squared_norm(gradient))
            size = max(abs(float(own)), float(losses.abs().mean()))
            self._require(
                abs(float(own - losses[row])) <= close * size,
                f"a row's loss was {float(own):.6g} alone and {float(losses[row]):.6g} beside "
                f"{count - 1} others",
            )
        apart = math.sqrt(squared_norm(left))
        self._require(
            apart <= close * sizes,
            f"the gradients of {count} rows add up to another sum together than alone",
        )

    @staticmethod
    def _require(same: bool, moved: str) -> None:
        if not same:
            raise UseError(
                f"on made-up rows, {moved}: one user's gradient would depend on the data of the "
                "others, and the clip norm would bound nothing",
                hint="divide each row's loss by that row's own count of targets, never by the "
                "batch's rows, tokens or width, and let nothing in the model mix rows",
            )

    def _run(self, units: Units, weights: Tensor) -> tuple[Tensor, list[Tensor]] | None:
        """Losses of some rows, and the gradient of their weighted sum; None if it says nothing."""
        only_losses = not self._gradients
        try:
            with torch.set_grad_enabled(self._gradients), _no_other_process(sharded=only_losses):
                losses = row_losses(self._loss, self._model, *units.cut())
                # The engines refuse other losses in words of their own.
                if not isinstance(losses, Tensor) or losses.shape != units.lengths.shape:
                    return None
                if not bool(losses.isfinite().all()) or losses.requires_grad == only_losses:
                    return None
                if only_losses:
                    return losses.double(), []
                total = (losses * weights[: len(losses)].to(losses)).sum()
                gradients = run_backward(total, self._parameters)
        finally:
            self._state.put_back()
        return losses.detach().double(), [
            torch.zeros_like(p) if g is None else g.to_dense()
            for p, g in zip(self._parameters, gradients, strict=True)
        ]


def _no_other_process(*, sharded: bool) -> AbstractContextManager[Any]:
    return _NoOtherProcess(sharded=sharded) if dist.is_initialized() else nullcontext()


class _NoOtherProcess(TorchDispatchMode):
    """Refuses a loss or a model that asks other processes for theirs, as by `dist.all_reduce`.

    Args:
        sharded: the model's parts are gathered from other processes, and nothing is reduced.
    """

    def __init__(self, *, sharded: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self._sharded = sharded

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        library, _, name = function.name().partition("::")
        if "c10d" in library and (not self._sharded or "allreduce" in name.replace("_", "")):
            raise UseError(
                f"the model or the loss asks other processes ({name.strip('_')}): one user's "
                "gradient would depend on the data of the users of other processes",
                hint="let each row's loss be its own; averages over processes are for logging, "
                "outside of the loss",
            )
        return function(*args, **(kwargs or {}))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, the model is in evaluation mode: without dropout, whose masks differ each time."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
