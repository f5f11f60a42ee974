r"""Engines for models that no single process holds: all processes in step, pass for pass.

A sharded layer is gathered by all processes together, so all must run the same number of passes:
who has fewer units goes through the motions with a made-up row that counts nothing.

**All parameters sharded: one way forwards, two ways back** (`engines.norm_pass`). On the first way
back each layer hands over its units' squared norms, so that no parameter's gradient is formed for
more than a layer at a time, and none is reduced. The second goes through the same graph, and each
layer hands over :math:`\sum_u c_u g_u`, with the clip factors :math:`c_u` of the first; FSDP2
scatters these. What both tell is compared with torch's own gradients once per model, on made-up
rows (`_require_agreement`).

A unit whose gradient is not finite would spoil that sum even times 0. Where any process has one,
all run the pass again with copies of another in its place. That begins from the generators' states
of the first pass, and must end where the first did: the norm and the gradient of a unit are of the
same masks.

**Frozen parameters sharded: one pass** over adapters, as in `engines.batched`.

**Fewer bits than float32.** Adapters are then computed one unit a pass. Where both passes are
needed the model is refused: in bfloat16 they differ by more than the margin can cover.

The clip aims at C(1 - m) as the book-keeping engine does, and the same argument holds
(`engines.batched`): norms and gradients are computed by different operations, and one pass's
sum over units and processes is float32; sums over passes are float64. A unit whose norm is not
finite in float32 adds zero.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import (
    FEW_ROWS,
    RAGGED,
    Answers,
    Shape,
    hooks_changed,
    made_up,
    most_tokens,
)
from userdp.gradients.certificate.state import State
from userdp.gradients.clipping import multiplicable, squared_norm
from userdp.gradients.engines.again import require_same_states, with_copies
from userdp.gradients.engines.batched import LEAST_CLIP, _Pass
from userdp.gradients.engines.engine import Engine, Task
from userdp.gradients.engines.forms import Form
from userdp.gradients.engines.norm_pass import norms_of
from userdp.gradients.engines.passes import (
    Pass,
    formed_bytes,
    layout_of,
    most_units,
    passes,
    rows_per_pass,
)
from userdp.gradients.engines.tape import NotCoveredError, Workspace
from userdp.gradients.losses import checked_losses
from userdp.gradients.model_randomness import GeneratorStates, known_randomness, secret_randomness
from userdp.gradients.models import trainable_parameters
from userdp.gradients.modes import unwatched
from userdp.gradients.precision import is_narrow, margin
from userdp.gradients.shards import is_sharded, let_go, local, reshard, zeros_like_parts
from userdp.gradients.sums import ClippedSum
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory

_CLOSE = 0.01
"""Relative. Both passes round differently; a wrong rule differs by far more."""

_NOTHING = 1e-12
"""Length of a gradient that counts as none: the norm of one that is exactly 0 is taken larger."""

_agreed: Answers[bool] = Answers()


def _sum_in_step(task: Task) -> ClippedSum:
    """`_sum_of_parts`; memory that runs out in one process ends the step in all.

    The other processes wait in the middle of a layer for the one that has no room, which cannot
    begin anew without them: so passes are not halved here (`engines.room`).
    """
    try:
        return _sum_of_parts(task)
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        raise FailureError(
            "memory ran out in a pass of a sharded model, whose processes compute in step, so that "
            "no pass can be halved; training stopped before this update",
            hint="go on with more processes or more memory for each; a new run needs less with a "
            "smaller --micro-batch or --activation-checkpointing",
        ) from None


def _sum_of_parts(task: Task) -> ClippedSum:
    """The clipped sum of a sharded model; a collective, each process with its own units."""
    if _most(int(hooks_changed(task.model)), task.units.lengths.device):
        Answers.forget(task.model)
    require_supported(task)
    if task.units.input_ids.shape[1] > most_tokens(task.model):
        raise UseError(
            "rows are longer than the model's configuration says it is made for, and nothing tells "
            "what it does with several of them",
            hint="prepare the store with a smaller --seq-len, or train on one process",
        )
    with let_go(task.model):
        state = State(task.model, task.loss)
        step = _Step(task, state)
        mine = step.cut()
        for number in range(_most(len(mine), task.units.lengths.device)):
            step.take(mine[number] if number < len(mine) else None)
            if state.changed():
                state.put_back()
                raise UseError(
                    "what the model or the loss holds changed during the forward pass: it would "
                    "carry data from one user to the next, and out of the step without noise",
                    hint="keep no state in the model or the loss, or train on one process",
                )
        return step.total


clipped_sum = Engine(_sum_in_step)
"""The engine of models sharded by `userdp.gradients.shards.shard`; all processes call it together.

Beside the errors of `Engine`: `UseError` if per-unit gradients of sharded parameters are asked for
(``item_clip_norm`` or a split over layers where all are sharded), if a layer has no rule, or if it
is not proved that rows are kept apart; `FailureError` if the second pass drew
other numbers than the first, or memory ran out. Clears ``.grad``.
"""


class _Step:
    """What the passes of one clipped sum share."""

    def __init__(self, task: Task, state: State) -> None:
        self._task = task
        self._two = _all_sharded(task.parameters)
        self.narrow = any(map(is_narrow, task.dtypes))
        wide = {p.dtype for p in task.parameters.values() if not is_narrow(p.dtype)}
        self._margin = margin(wide or {torch.float32})
        self._nobody = nobody(task.model, masked=task.masked)
        self._workspace = Workspace(state.tensors())
        self._device = task.units.lengths.device
        self.total = task.zero()

    def cut(self) -> list[Pass]:
        """The passes of this process's units; one that is too large for a pass is one by itself."""
        task = self._task

        def most(rows: int, width: int) -> int:
            formed = formed_bytes(task, rows, width)
            # Where gradients pass through twice, what is formed of a layer goes before the next
            # one's.
            return 1 if self.narrow else most_units(task, max(formed) if self._two else sum(formed))

        cut, _ = passes(
            task.units,
            micro_batch=max([1, *task.units.offsets.diff().tolist()]),
            most_units=most,
            most_rows=lambda width, _, device: rows_per_pass(width, task.micro_batch, device),
        )
        return cut

    def take(self, part: Pass | None) -> None:
        """Add one pass's units to the sum; a collective.

        Args:
            part: some units; None goes through the motions.
        """
        units = self._nobody if part is None else part.of(self._task.units)
        try:
            if self._two:
                self._through_twice(units, part)
                return
            done = _Pass(self._task, units, self._workspace, Form.FORMED)
        except NotCoveredError as error:
            raise _not_covered(error.names) from None
        if part is not None:
            aimed = self._task.l2_clip_norm * (1 - self._margin)
            factors, usable = done.clipped(aimed)
            done.leave_out(~usable)
            done.add_to(self.total.value, factors, list(part.places))
            self._note(part, done.squared_norms, done.losses)

    def _through_twice(self, units: Units, part: Pass | None) -> None:
        """`take`, where no process holds a whole gradient."""
        task = self._task
        first = GeneratorStates.read()
        with norms_of(task.model, task.loss, units, task.parameters, self._workspace) as norms:
            with unwatched():  # the model is not running
                factors = torch.zeros_like(norms.squares)
                if part is not None:
                    factors = self._factors(norms.squares)
                left_out = part is not None and not bool((factors > 0).all())
                if part is not None:
                    factors[len(part.numbers) :] = 0
                again = self._anywhere(left_out)
            if not again:
                norms.add(factors)
        if again:
            last = GeneratorStates.read()
            first.load()
            self._run_again(units, factors)
            require_same_states(last)
        _take_gradients(task.parameters, self.total.value)
        if part is not None:
            self._note(part, norms.squares, norms.losses)

    def _run_again(self, units: Units, factors: Tensor) -> None:
        """The pass anew, of all units but those of factor 0, which may not be finite.

        Copies of one that counts stand in their places, so that all others see their masks again,
        and are computed as they were.
        """
        task, good = self._task, (factors > 0).nonzero().flatten().tolist()
        if good:
            units = with_copies(units, good[0], good)
        else:
            units, factors = self._nobody, factors.new_zeros(1)
        with norms_of(task.model, task.loss, units, task.parameters, self._workspace) as norms:
            norms.add(factors)

    def _factors(self, squares: Tensor) -> Tensor:
        """The clip factors; 0 for a unit whose gradient float32 cannot hold."""
        task = self._task
        factors = task.rule.factors(
            {"": squares},
            {"": sum(task.sizes.values())},
            l2_clip_norm=task.l2_clip_norm * (1 - self._margin),
        )[""]
        return torch.where(multiplicable([factors]), factors, torch.zeros_like(factors))

    def _anywhere(self, here: bool) -> bool:
        """Whether it is so in any process; a collective."""
        return bool(_most(int(here), self._device))

    def _note(self, part: Pass, squares: Tensor, losses: Tensor) -> None:
        numbers, taken = list(part.numbers), len(part.numbers)
        self.total.norms[numbers] = squares[:taken].sqrt().cpu()
        self.total.losses[numbers] = losses[:taken].cpu()
        self.total.non_finite += int((~squares[:taken].isfinite()).sum())


@secret_randomness()
def require_supported(task: Task) -> None:
    """Refuse what `clipped_sum` cannot do, before anything is charged; a collective.

    Reads no row of the task, which may be of `nobody`; clears ``.grad``. Errors as of
    `clipped_sum`.
    """
    with let_go(task.model):
        two = _all_sharded(task.parameters)
        if two:  # gradients arrive there
            for parameter in task.parameters.values():
                parameter.grad = None
        if task.least_clip_norm < LEAST_CLIP:
            raise UseError(
                f"a sharded model clips to at least {LEAST_CLIP:g}, got {task.l2_clip_norm!r}"
            )
        if two and (task.item_clip_norm is not None or task.rule.layer_split is not None):
            raise UseError(
                "item_clip_norm and layer_split need each unit's gradient, which a sharded model "
                "never forms",
                hint="train adapters (--lora-rank), or leave them out",
            )
        # Looks once, and all processes look together here.
        narrow = any(map(is_narrow, task.dtypes))
        reshard(task.model)
        if two and narrow:
            raise UseError(
                "a sharded model computes here in fewer bits than float32: the pass that takes the "
                "norms and the one that adds up would differ by more than the margin of the clip",
                hint="use --precision float32, train adapters (--lora-rank), or do not shard",
            )
        _require_agreement(task, two=two)


def _run_alone(task: Task, unit: int) -> None:
    """The pass by torch alone, of one unit's mean loss."""
    owner = layout_of(task.units).unit_of_row
    with torch.enable_grad():
        losses = checked_losses(task.loss, task.model, *task.units.all_rows())
        torch.autograd.backward(losses[owner == unit].mean())


def _take_gradients(parameters: Mapping[str, nn.Parameter], total: Mapping[str, Tensor]) -> None:
    """Add what a pass left in ``.grad`` to ``total``, and clear it."""
    for name, parameter in parameters.items():
        if parameter.grad is not None:
            total[name].add_(local(parameter.grad))
            parameter.grad = None


def nobody(model: nn.Module, *, masked: bool) -> Units:
    """A made-up unit of one row, on the device of the model."""
    device = next(iter(trainable_parameters(model).values())).device
    return made_up(model, Shape((1,), (6,)), masked=masked, device=device)


def _most(count: int, device: torch.device) -> int:
    """The largest of everybody's counts."""
    counts = torch.tensor([count], device=device)
    dist.all_reduce(counts, op=dist.ReduceOp.MAX)
    return int(counts)


def _all_sharded(parameters: Mapping[str, nn.Parameter]) -> bool:
    sharded = {is_sharded(p) for p in parameters.values()}
    if len(sharded) > 1:
        raise UseError(
            "some trainable parameters are sharded and some are not",
            hint="shard with userdp.gradients.shards.shard, after the adapters are attached",
        )
    return sharded == {True}


def _require_agreement(task: Task, *, two: bool) -> None:
    """Whether both passes agree on made-up rows; once for each model, loss, and use of a mask.

    Raises:
        UseError: a layer has no rule, rows are not seen to be kept apart, or the loss couples them.
        FailureError: norms and gradients differ.
    """
    known = _agreed.of(task.model, task.loss)
    if task.masked in known:
        return
    device = next(iter(task.parameters.values())).device
    require_rows_apart(task.model, task.loss, masked=task.masked, gradients=False)
    reshard(task.model)
    workspace = Workspace(State(task.model, task.loss).tensors())
    with known_randomness("made-up rows"):  # the same masks on every process
        for shape in RAGGED:
            units = made_up(task.model, shape, masked=task.masked, device=device)
            alike, _ = passes(units, micro_batch=FEW_ROWS, most_units=lambda rows, width: FEW_ROWS)
            for one in alike:
                probe = task.but(units=one.of(units), item_clip_norm=None)
                try:
                    if two:
                        _require_same_norms(probe, workspace)
                    else:
                        _Pass(probe, probe.units, workspace, Form.FORMED)
                except NotCoveredError as error:
                    raise _not_covered(error.names) from None
    known[task.masked] = True


def _require_same_norms(probe: Task, workspace: Workspace) -> None:
    """Compare norms with gradients of each unit, of the same graph and of another pass."""
    units, parameters = probe.units, probe.parameters
    states = GeneratorStates.read()
    for unit in range(len(units)):
        states.load()
        with norms_of(probe.model, probe.loss, units, parameters, workspace) as norms:
            with unwatched():
                alone = torch.zeros_like(norms.squares)
                alone[unit] = 1
            norms.add(alone)
        _require_norm(parameters, norms.squares[unit])
        states.load()
        _run_alone(probe, unit)
        _require_norm(parameters, norms.squares[unit])


def _require_norm(parameters: Mapping[str, nn.Parameter], square: Tensor) -> None:
    total = zeros_like_parts(parameters)
    _take_gradients(parameters, total)
    found = torch.tensor(squared_norm(total.values()), device=square.device)
    dist.all_reduce(found)
    # Every process added the same rows.
    norm, expected = float(found.sqrt()) / dist.get_world_size(), float(square.sqrt())
    if not abs(norm - expected) <= _CLOSE * norm + _NOTHING:
        raise FailureError(
            f"the two passes disagree on made-up rows: norm {expected}, gradient {norm}; "
            "clipping would not hold for this model",
            hint="train it on one process, where the reference engine can take over",
        )


def _not_covered(names: list[str]) -> UseError:
    return UseError(
        f"no per-unit rule covers the use of {', '.join(names[:3])}, and a sharded model has no "
        "reference engine to fall back to",
        hint="freeze them, train adapters, or train on one process",
    )
