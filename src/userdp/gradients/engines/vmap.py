"""The vmap engine: `torch.func` forms every unit's gradient, whatever the layers are.

Guarantee: as that of `userdp.gradients.engines.one_pass`, each norm taken of the very gradient that
is added. Units of a pass have the same number of rows. What ``vmap`` cannot trace (control
flow or selections that depend on tensors, a loss that calls the model's own modules, an LSTM) and
two-stage clips are computed by the reference engine, and so is a model that draws numbers which
rows share, or one that makes a step of somebody's real numbers, such as a choice of experts
(`engines.places.steps`). No two units meet in what is traced.

Every unit's masks are its own (``randomness="different"``). Whether ``vmap`` can trace a model is a
matter of code and shapes (Python cannot look into what it batches), not of what the masks are, so
the reference engine may then draw anew. A unit whose norm is not finite would be drawn again for
what its masks were: where the model draws, it counts as zero instead.

Models under `torch.compile` run as they are written, as in the other engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_leaves

from userdp.errors import FailureError
from userdp.gradients.clipping import multiplicable
from userdp.gradients.draws import Draws, watching_host
from userdp.gradients.engines import reference
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.out_of_sight import other_modes, runs_code
from userdp.gradients.engines.passes import Pass, PassShape, most_units, passes, whole_bytes
from userdp.gradients.engines.places.place import tensors_in
from userdp.gradients.engines.places.reads import ASKS, KEEPS_STATISTICS
from userdp.gradients.engines.places.steps import jumps
from userdp.gradients.engines.precision import Watch, aim, require_no_masks
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.engines.uses import Dense, wide
from userdp.gradients.losses import row_losses
from userdp.gradients.modes import eagerly
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory


def sum_of_batches(task: Task) -> ClippedSum:
    """The clipped sum with ``vmap(grad)`` over the units of a pass.

    Raises:
        NotCoveredError: ``vmap`` cannot trace the model or the loss, or the clip has two stages.
    """
    if task.item_clip_norm is not None:
        raise NotCoveredError(["(the clip norm of rows)"])
    aimed = task.but(l2_clip_norm=aim(task))
    try:
        with eagerly(), _eager_attention(task.model):
            total, alone = _sum_of_batches(aimed)
    except (RuntimeError, AttributeError) as error:  # it traces no calls of submodules
        if isinstance(error, FailureError) or ran_out_of_memory(error):
            raise
        raise NotCoveredError([f"({error})"]) from error
    total.sensitivity = float(task.l2_clip_norm)
    for unit in alone:
        one = aimed.but(units=task.units.select(unit, unit + 1))
        total.add_unit(unit, reference.sum_of_units(one))
    return total


@contextmanager
def _eager_attention(model: nn.Module) -> Iterator[None]:
    """`transformers` looks into the mask to choose a kernel, which ``vmap`` cannot follow."""
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    choose = getattr(model, "set_attn_implementation", None)
    if kind in (None, "eager") or choose is None:
        yield
        return
    try:
        choose("eager")
        yield
    finally:
        choose(kind)


class _With(nn.Module):
    """The model with other parameters: what a loss is handed inside ``vmap``."""

    _model: nn.Module
    _values: dict[str, Tensor]

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor]) -> None:
        super().__init__()
        self.__dict__["_model"] = model
        self.__dict__["_values"] = parameters

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return functional_call(self._model, self._values, args, kwargs)


def cut(task: Task) -> tuple[list[Pass], list[int]]:
    """The passes, which form the gradients of all their units; and the units too large for one."""
    most = most_units(task, whole_bytes(task))
    return passes(
        task.units,
        micro_batch=task.micro_batch,
        most_units=lambda rows, width: most,
        most_rows=lambda width, micro_batch, device: micro_batch,
        filled=task.draws is Draws.NONE,
    )


def _sum_of_batches(task: Task) -> tuple[ClippedSum, list[int]]:
    """The sum of what can be traced together, and the units that cannot."""
    drawn = task.draws
    detached = {name: p.detach() for name, p in task.parameters.items()}
    total = task.zero()

    def unit_loss(
        values: dict[str, Tensor],
        input_ids: Tensor,
        lengths: Tensor,
        weights: Tensor,
        targets: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        rows = row_losses(task.loss, _With(task.model, values), input_ids, lengths, targets)
        mean = (rows * weights.to(rows.dtype)).sum()
        return mean, mean.detach()

    gradients_of: Callable[..., Any] = vmap(
        grad(unit_loss, has_aux=True),
        in_dims=(None, 0, 0, 0, 0 if task.masked else None),
        randomness="different",
    )
    cuts, alone = cut(task)
    for one in cuts:
        part, numbers = one.of(task.units), list(one.numbers)
        with watching_host(drawn), _Watch(part.lengths.device.type) as watch:
            gradients, losses = gradients_of(detached, *_by_unit(part, one.shape))
        if watch.hindrances:  # again: the model may have caught the error
            raise NotCoveredError(watch.hindrances)
        if watch.narrow:  # see one_pass
            require_no_masks(drawn)
            alone += numbers
            continue
        uses = {name: Dense(wide(gradient)) for name, gradient in gradients.items()}
        by_name = {name: use.squared_norms() for name, use in uses.items()}
        square = torch.stack(list(by_name.values())).sum(0)
        factors = task.rule.factors(by_name, task.sizes, l2_clip_norm=task.l2_clip_norm)
        usable = square.isfinite() & multiplicable(factors.values())
        usable = usable[: len(numbers)]
        total.norms[numbers] = square[: len(numbers)].sqrt().cpu()
        total.losses[numbers] = losses[: len(numbers)].double().cpu()
        if drawn is Draws.NONE:
            alone += [numbers[int(place)] for place in (~usable).nonzero()]
        else:
            total.non_finite += int((~usable).sum())
        good = usable.nonzero().flatten()
        for name, use in uses.items():
            Dense(use.gradients[good]).add_to(total.value[name], factors[name][good])
    return total, alone


class _Watch(Watch):
    """As `Watch`; and ends a pass in which a step of somebody's real numbers is made.

    Or in which code of somebody's own is handed all units at once: a rule for ``vmap``, a mode. Or
    in which a call fails: a model that catches the error would go on for all units by what one of
    them holds.

    Attributes:
        hindrances: what ended the pass.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.hindrances: list[str] = []

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        name = func.__name__
        if runs_code(func, args, kwargs) or other_modes():
            self._end(f"({name} may run code of the model's own)")
        try:
            answer = super().ran(func, args, kwargs)
        except Exception:
            self.hindrances.append(f"({name} failed)")
            raise
        given = [*tensors_in(args), *tensors_in(kwargs.values())]
        if not _tells_nothing(func, answer) and any(_of_units(t) for t in given):
            self._end(f"({name} tells of somebody's numbers)")
        results = answer if isinstance(answer, tuple | list) else (answer,)
        jumped = any(jumps(func, part) for part in results if isinstance(part, Tensor))
        if jumped and any(t.is_floating_point() and _of_units(t) for t in given):
            self._end(f"(a step of somebody's numbers: {name})")
        return answer

    def _end(self, hindrance: str) -> NoReturn:
        self.hindrances.append(hindrance)
        raise NotCoveredError([hindrance])


def _tells_nothing(func: Any, answer: object) -> bool:
    """Whether Python learns nothing of numbers from an answer, nor a running mean of torch's."""
    if func in ASKS:
        return True
    wrote = func in KEEPS_STATISTICS
    return not wrote and all(v is None or isinstance(v, Tensor) for v in tree_leaves(answer))


def _of_units(tensor: Tensor) -> bool:
    """Whether ``vmap`` holds a tensor for each unit here."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def _by_unit(units: Units, shape: PassShape) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """(units, rows, width) tokens, (units, rows) lengths, each row's weight, targets."""
    input_ids, lengths, targets = units.all_rows()
    each = shape.units, shape.rows
    return (
        input_ids.view(*each, -1),
        lengths.view(each),
        lengths.new_full(each, 1 / shape.rows, dtype=torch.float64),
        None if targets is None else targets.view(*each, -1),
    )
