r"""Refuse a loss by which one row's number depends on another row.

A loss that is divided by the batch's tokens, by its number of rows, by the width to which it is
padded, or that compares rows with each other, makes every user's gradient depend on who else is
there: leaving one user out then moves what all the others contribute, and C bounds none of it.

The question is asked on made-up ragged rows (`certificate.made_up`): each row's loss, and the
gradient of a weighted sum of them, must be the same whether the rows are computed together or each
alone. So neither the answer nor a refusal depends on anybody's data. It is a check and no proof:
the batched engines prove of each pass that it kept its rows apart (`userdp.gradients.certificate.rows`)
and the reference engine computes each unit alone, so neither rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients.certificate.made_up import (
    EQUAL,
    RAGGED,
    Answers,
    Shape,
    large,
    made_up,
)
from userdp.gradients.certificate.state import State
from userdp.gradients.clipping import squared_norm
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.memory import let_go_of_memory
from userdp.gradients.model_randomness import GeneratorStates, known_randomness, seeds
from userdp.gradients.models import (
    require_uncoupled,
    trainable_parameters,
)
from userdp.gradients.modes import FunctionMode, eagerly, run_backward
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory

_apart: Answers[set[tuple[int, int]]] = Answers()

# A batch's statistic moves a loss by tens of percents on these rows; rounding moves it far less.
_CLOSE = {torch.float64: 1e-7, torch.float32: 1e-3}
_CLOSE_NARROW = 0.06

_SAME = 1e-3
"""Relative: devices add in another order each time; another mask moves a norm by far more."""

_FEW = 8
"""Of more rows than these, three are computed alone: the first, one within, and the last."""


def require_rows_apart(
    model: nn.Module,
    loss: Loss,
    *,
    masked: bool,
    gradients: bool = True,
    largest: Sequence[tuple[int, int]] = (),
) -> None:
    """Refuse a loss, or a model, that couples rows; asked once for each, on made-up rows.

    Code may take another branch where a pass has many rows, or long ones, and how many it has is
    for the cohort to say. So it is asked besides on a pass as large as any that will come.

    Args:
        model: in the mode in which it trains; its dropout is off while it is asked.
        loss: per-row loss.
        masked: whether it will be given targets.
        gradients: whether to compare gradients too; a sharded model's are not formed here.
        largest: rows of a pass and tokens of a row, such that every pass fits into one of them;
            asked unless it was of as many and as long ones (`engines.passes.largest_passes`).
            `make_private` asks of the most that its plan allows, so that no step asks again, let
            alone because of who is in it. Empty where units are computed alone.

    Raises:
        UseError: says which number moved.
        Exception: whatever the model or the loss raises on made-up rows.
    """
    parameters = trainable_parameters(model)
    dtypes = tuple((name, p.dtype) for name, p in parameters.items())
    apart = _apart.of(model, loss).setdefault((masked, model.training, dtypes), set())
    for rows, width in ((0, 0), *largest):
        if any(rows <= most and width <= longest for most, longest in apart):
            continue
        require_uncoupled(model)
        moved = _coupling_in_room(
            model, loss, parameters, rows, width, masked=masked, gradients=gradients
        )
        if moved is None:
            apart.add((rows, width))
            continue
        raise UseError(
            f"on made-up rows, {moved}: one user's gradient would depend on the data of the "
            "others, and the clip norm would bound nothing",
            hint="divide each row's loss by that row's own count of targets, never by the batch's "
            "rows, tokens or width, and let nothing in the model mix rows",
        )


def _coupling_in_room(
    model: nn.Module,
    loss: Loss,
    parameters: Mapping[str, nn.Parameter],
    rows: int,
    width: int,
    *,
    masked: bool,
    gradients: bool,
) -> str | None:
    """`_coupling` of a pass of ``rows`` rows (0: of a few small ones), or of as many as fit.

    A pass for which memory has no room will not come: passes are halved then
    (`userdp.gradients.engines.room`), down to one row, which couples nothing.
    """
    while True:
        shapes = (large(rows, width),) if rows else (*RAGGED, EQUAL)
        try:
            return _coupling(model, loss, parameters, shapes, masked=masked, gradients=gradients)
        except (MemoryError, RuntimeError) as error:
            if not (rows and ran_out_of_memory(error)):
                raise
        let_go_of_memory()
        if rows <= 2:
            return None
        rows //= 2


def _coupling(
    model: nn.Module,
    loss: Loss,
    parameters: Mapping[str, nn.Parameter],
    shapes: Sequence[Shape],
    *,
    masked: bool,
    gradients: bool,
) -> str | None:
    """What moved, in words; None where nothing did, or where the rows cannot be run."""
    device = next(iter(parameters.values())).device
    with known_randomness("made-up rows"), eagerly():
        if gradients and shapes[0] is RAGGED[0]:
            _require_same_in_any_order(model, loss, parameters, masked=masked)
        for shape in shapes:
            units = made_up(model, shape, masked=masked, device=device)
            state, begun = State(model, loss), GeneratorStates.read()
            ask = _Question(model, loss, units, list(parameters.values()), state, gradients)
            moved = ask.answer()
            if moved is not None and GeneratorStates.read() != begun:  # not to compare coins
                with evaluating(model):
                    begun = GeneratorStates.read()
                    moved = ask.answer()
                    if GeneratorStates.read() != begun:
                        return None  # it draws in evaluation mode too: rows cannot be compared
            if moved is not None:
                return moved
    return None


def _require_same_in_any_order(
    model: nn.Module, loss: Loss, parameters: Mapping[str, nn.Parameter], *, masked: bool
) -> None:
    """Refuse code that says something else of a unit in another order of units.

    As the reference engine computes them: from states of their own, and with what model and loss
    hold put back behind each.
    """
    device = next(iter(parameters.values())).device
    units = made_up(model, RAGGED[0], masked=masked, device=device)
    state, begun = State(model, loss), GeneratorStates.read()
    norms: dict[int, list[float]] = {0: [], 1: []}
    for unit in (0, 1, 1, 0):
        begun.load()
        seeded = seeds()
        with torch.enable_grad():
            one = units.select(unit, unit + 1)
            losses = row_losses(loss, model, *one.cut())
            if not (isinstance(losses, Tensor) and losses.requires_grad):
                return  # the engines refuse such losses in words of their own
            gradients = run_backward(losses.sum(), parameters.values())
        if seeds() != seeded:
            raise UseError(
                "the model or the loss seeds a random number generator: its masks are then known",
                hint="do not seed inside the model or the loss",
            )
        norms[unit].append(
            math.sqrt(squared_norm(g.to_dense() for g in gradients if g is not None))
        )
        state.put_back()
    for one, other in norms.values():
        if abs(one - other) > _SAME * max(one, other):
            raise UseError(
                "the model's answer changes from one pass over the same rows to the next, though "
                "all generators begin from the same states: it keeps a state, or draws from a "
                "generator of its own, so that what it says of one user depends on others",
                hint="keep no state, and draw from torch's default generator, as "
                "torch.nn.functional.dropout does",
            )


class _Question:
    """Whether these rows' losses and gradients are the same together and alone."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        units: Units,
        parameters: Sequence[nn.Parameter],
        state: State,
        gradients: bool,
    ) -> None:
        self._model, self._loss, self._units, self._state = model, loss, units, state
        self._parameters, self._gradients = parameters, gradients
        count = len(units.lengths)
        few = count <= _FEW
        self._asked = range(count) if few else (0, count // 2, count - 1)
        generator = torch.Generator().manual_seed(1)
        weights = 0.5 + torch.rand(count, generator=generator)
        self._weights = torch.zeros(count)
        self._weights[list(self._asked)] = weights[list(self._asked)]

    def answer(self) -> str | None:
        """What differs; None where nothing does."""
        units, quiet = self._units, _Quiet(self._units.lengths.device.type)
        with self._leaving_no_trace(), quiet:
            losses, together = self._run(slice(None), units.input_ids.shape[1])
            if losses is None:
                return None
            apart, sizes = together, 0.0  # less what each row adds alone: one gradient's memory
            for row in self._asked:
                here = slice(row, row + 1)
                own, gradient = self._run(here, int(units.lengths[row]))
                if own is None or own.shape != (1,):
                    return None
                close = _close(self._parameters, narrow=quiet.narrow)
                moved, size = abs(float(own - losses[row])), abs(float(own))
                if moved > close * max(size, float(losses.abs().mean())):
                    return (
                        f"a row's loss was {float(own):.6g} alone and {float(losses[row]):.6g} "
                        f"beside {len(losses) - 1} others"
                    )
                for at, part in enumerate(gradient):
                    apart[at] = apart[at] - part  # a new tensor: autograd may give one out twice
                sizes += math.sqrt(squared_norm(gradient)) if gradient else 0.0
                del gradient  # not beside the next one
        left_over = math.sqrt(squared_norm(apart))
        if left_over > close * sizes:
            return (
                f"the gradients of {len(losses)} rows add up to another sum together than alone "
                f"(apart by {left_over / sizes:.3g} of their size)"
            )
        return None

    @contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._state.put_back()

    def _run(self, rows: slice, width: int) -> tuple[Tensor | None, list[Tensor]]:
        """Losses of some rows, and the gradient of their weighted sum."""
        units, backward = self._units, self._gradients
        targets = None if units.targets is None else units.targets[rows, :width]
        with torch.set_grad_enabled(backward):
            ids = units.input_ids[rows, :width]
            self._state.put_back()
            losses = row_losses(self._loss, self._model, ids, units.lengths[rows], targets)
            asked = losses.shape == units.lengths[rows].shape and bool(losses.isfinite().all())
            if not asked or (backward and not losses.requires_grad):
                return None, []  # the engines refuse such losses in words of their own
            if not backward:
                return losses.detach().double(), []
            total = (losses * self._weights[rows].to(losses)).sum()
            gradients = run_backward(total, self._parameters)
        wide = [
            torch.zeros_like(p, dtype=dtype) if g is None else g.to_dense().to(dtype)
            for p, g in zip(self._parameters, gradients, strict=True)
            for dtype in [torch.promote_types(p.dtype, torch.float32)]
        ]
        return losses.detach().double(), wide


def _close(parameters: Sequence[Tensor], *, narrow: bool) -> float:
    if narrow or torch.get_float32_matmul_precision() != "highest":
        return _CLOSE_NARROW
    return max(_CLOSE.get(p.dtype, _CLOSE_NARROW) for p in parameters)


class _Quiet(FunctionMode):
    """Within, nothing is dropped out; notes whether something ran in a narrow precision."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = device
        self.narrow = False

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        kwargs = dict(kwargs)
        self.narrow = self.narrow or torch.is_autocast_enabled(self._device)
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs.pop("dropout_p", None)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.dtype in (torch.bfloat16, torch.float16):
            self.narrow = True
        return result


_DROPOUTS = frozenset(
    function
    for kind in ("", "alpha_", "feature_", "feature_alpha_")
    for name in (f"{kind}dropout", f"{kind}dropout_", f"{kind}dropout1d")
    for home in (torch, F)
    if (function := getattr(home, name, None)) is not None
) | {F.dropout2d, F.dropout3d}


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
