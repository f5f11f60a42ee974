r"""The engine of models that no single process holds: all processes in step, pass for pass.

It computes as `engines.batched` does: the same certificates, comparison of calls and uses of
parameters, and the same guarantee. A sharded layer is gathered by all processes together, so all
must run the same passes in number: shapes are asked about by all processes in one order, and who
has fewer passes goes through the motions with a made-up row that counts nothing. Nobody can compute
a unit alone meanwhile. So a layer without a rule, a pass that strays from its certificate, and rows
that raise an error stop the step; and a unit whose gradient float32 cannot hold adds zero.

**All parameters sharded: one way forwards, two ways back** (`NormTape`). On the first way back each
layer hands over its units' squared norms, and what it formed for them is let go. Then the clip
factors :math:`c_u` are known, and the same graph is gone through once more: each layer forms the
same numbers again, bit by bit, since the same kernels run on the same tensors, and hands over
:math:`\sum_u c_u g_u`, which FSDP2 scatters. No process holds more than one layer's gradients.
Activations are kept in between: a unit's norm and gradient are of the same dropout masks because
there are no others.

The factors come in where a parameter's gradient is made, not in the losses: what passes backwards
between the layers is then the same both times, also where it lies so near the end of float32's
range that a factor would push it over (a unit was added with 1.87 C).

*Norms* are those of the very numbers that are added, or from Gram matrices, never too small however
much cancels (`Use.at_most`: nobody else can compute such a unit). Of a parameter with several uses,
whose sums are added one after another, they are those of the sum, or where the uses cancel,
:math:`n \sum_i \|g_i\|^2 \ge \|\sum_i g_i\|^2` of n uses.

**Frozen parameters sharded: one pass** over adapters, as in `engines.batched`.

**Fewer bits than float32.** Adapters are then computed one unit a pass, and a model of which all is
sharded is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.gradients.certificate.coupling import require_rows_apart
from userdp.gradients.certificate.made_up import Shape, made_up, most_tokens
from userdp.gradients.clip_factors import ClippedSum, squared_norm
from userdp.gradients.engines.batched import Passes
from userdp.gradients.engines.choice import disagreement, form_of
from userdp.gradients.engines.comparing import Comparing, NotCoveredError
from userdp.gradients.engines.engine import Engine, Task
from userdp.gradients.engines.passes import Pass, PassShape, formed_bytes, most_units
from userdp.gradients.engines.tape import Tape
from userdp.gradients.engines.uses import CANCELLED_USES, Forms, Use, squared_norms
from userdp.gradients.losses import checked_losses
from userdp.gradients.model_randomness import GeneratorStates, secret_randomness
from userdp.gradients.models import trainable_parameters
from userdp.gradients.modes import run_backward, unwatched
from userdp.gradients.precision import is_narrow
from userdp.gradients.shards import is_sharded, let_go, local, reshard
from userdp.gradients.units import Units

_NOBODY = PassShape(1, 1, 6)


def _sum_in_step(task: Task) -> ClippedSum:
    """The clipped sum of a sharded model; a collective, each process with its own units."""
    require_supported(task)
    if task.units.input_ids.shape[1] > most_tokens(task.model):
        raise UseError(
            "rows are longer than the model's configuration says it is made for, and nothing tells "
            "what it does with several of them",
            hint="prepare the store with a smaller --seq-len, or train on one process",
        )
    with let_go(task.model):
        try:
            return _sum(task, form_of(task))
        except NotCoveredError as error:
            raise _no_reference(str(error)) from None


clipped_sum = Engine(_sum_in_step)
"""The engine of models sharded by `userdp.gradients.shards.shard`; all processes call it together.

Beside the errors of `Engine`: `UseError` if per-row gradients of sharded parameters are asked for
(``item_clip_norm`` where all are sharded), if a layer has no rule, or if it is not proved that rows
are kept apart, or the two ways back disagree; `FailureError` if memory ran out. Clears ``.grad``.
"""


def _sum(task: Task, form: Forms) -> ClippedSum:
    step = _InStep(task, form)
    idle = [Pass((), (), _NOBODY)] * (_most(len(step.passes), task) - len(step.passes))
    for one in (*step.passes, *idle):
        step.take(one)
    return step.finish()


class NormTape(Tape):
    """A tape that keeps squared norms and forgets the rest, layer by layer.

    Only a parameter that several modules share (tied embeddings) is kept until all have been seen.
    """

    derives = False  # a sharded layer's parameters are gone by the end of the backward pass
    _total: Tensor
    _bad: Tensor | None = None
    _factors: Mapping[str, Tensor] | None = None

    def __init__(self, task: Task, *given: Any, **options: Any) -> None:
        super().__init__(task, *given, **options)
        self._squares: dict[str, Tensor] = {}
        self._gathered: dict[str, nn.Parameter] = {}
        self._homes = {
            (module, key): self.names[id(p)]
            for module in task.model.modules()
            for key, p in module._parameters.items()
            if id(p) in self.names
        }
        every = task.model.named_parameters(remove_duplicate=False)
        self._modules = Counter(self.names.get(id(p)) for _, p in every)

    @contextmanager
    def watching(self, *by_row: Tensor | None) -> Iterator[None]:
        """As `Tape.watching`; and learn the gathered parameters of each module at its turn."""

        def learn(module: nn.Module, arguments: object) -> None:
            for key, gathered in module._parameters.items():
                name = self._homes.get((module, key))
                if name is not None and gathered is not None:
                    self._gathered[name] = gathered
                    self.names[id(gathered)] = self.told_names[id(gathered)] = name

        modules = {module for module, _ in self._homes}
        handles = [module.register_forward_pre_hook(learn) for module in modules]
        try:
            with super().watching(*by_row):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def backward(self, total: Tensor) -> list[str]:
        """As `Tape.backward`; keeps the graph.

        FSDP finishes a pass by writing to ``.grad``, which is cleared.
        """
        self._total = total
        run_backward(total, (), accumulate=True, keep_graph=True)
        with unwatched():  # the model is not running
            missed = [name for name, p in self._parameters.items() if p.grad is not None]
            _clear(self._parameters.values())
        return missed

    def keep(self, name: str, use: Use) -> None:
        """Keep a use's norms; all of it where the parameter is shared."""
        shared = self._modules[name] > 1
        use = use.chosen(self.form_of(name))
        if self._factors is not None:
            parameter = self._gathered[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            use = use if self._bad is None else use.without(self._bad)
            use.add_to(parameter.grad, self._factors[name])
        elif shared:
            self._uses[name].append(use)
        elif name in self._squares:  # its norm is not the sum of its uses' norms
            raise NotCoveredError(f"{name} is used more than once")
        else:
            self._squares[name] = use.at_most()

    def squares_by_name(self) -> dict[str, Tensor]:
        nothing = torch.zeros(self.layout.units, dtype=torch.float64, device=self.anchor.device)
        squares = dict.fromkeys(self._parameters, nothing) | self._squares
        for name, uses in self._uses.items():
            apart = torch.stack([use.at_most() for use in uses]).sum(0)
            together, _ = squared_norms(uses)
            accurate = together >= CANCELLED_USES * apart
            squares[name] = torch.where(accurate, together, len(uses) * apart)
        self._uses.clear()
        return squares

    def drop(self, bad: Tensor) -> None:
        self._bad = bad

    def add_to(self, total: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """Go through the graph once more; parameters get the clipped sum."""
        self._factors = factors
        assert isinstance(self.calls, Comparing)
        self.calls.rewind()
        with self.watching():
            run_backward(self._total, (), accumulate=True)
        self.calls.require_apart(True, [])
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                total[name].add_(local(parameter.grad))
        _clear(self._parameters.values())


class _InStep(Passes):
    """Passes in as many processes as share the model, each with its own units."""

    def __init__(self, task: Task, form: Forms) -> None:
        self.kind = NormTape if _all_sharded(task) else Tape
        self._narrow = any(map(is_narrow, task.dtypes))
        assert task.size is not None  # a collective: asked now, by all, and known from here on
        super().__init__(task, form, strict=True)

    def _room(self, rows: int, width: int) -> int:
        if self._narrow:
            return 1
        if self.kind is Tape:
            return super()._room(rows, width)
        formed = formed_bytes(self._task, rows, width, every=self._form is not None)
        return most_units(self._task, max(formed))  # of a layer it goes before the next one's

    def _asked_of(self, shapes: Iterable[PassShape]) -> Iterable[PassShape]:
        """Of all processes' shapes, in one order."""
        mine = torch.tensor([*shapes, _NOBODY], device=self._task.units.lengths.device)
        padded = mine.new_zeros(_most(len(mine), self._task), 3)
        padded[: len(mine)] = mine
        every = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(every, padded)
        found = {PassShape(*shape) for shape in torch.cat(every).tolist()}
        return sorted(shape for shape in found if shape.units)

    def _rows_of(self, one: Pass) -> Units:
        """The rows of a pass; of nobody where other processes have one more."""
        if one.numbers:
            return super()._rows_of(one)
        return nobody(self._task.model, masked=self._task.masked)

    def _take_again(
        self, number: int, one: Pass, begin: GeneratorStates | None, *, beside_nobody: bool
    ) -> None:
        """A unit that cannot be added as it was adds zero."""
        self._total.non_finite += not bool(self._total.norms[number].isfinite())


@secret_randomness()
def require_supported(task: Task) -> None:
    """Refuse what `clipped_sum` cannot do, before anything is charged; a collective.

    Reads no row of the task, which may be of `nobody`; clears ``.grad``. Errors as of
    `clipped_sum`.
    """
    with let_go(task.model):
        two = _all_sharded(task)
        if two and task.item_clip_norm is not None:
            raise UseError(
                "item_clip_norm needs each row's gradient, which a sharded model never forms",
                hint="train adapters (--lora-rank), or leave it out",
            )
        # Looks once, and all processes look together here.
        narrow = any(map(is_narrow, task.dtypes))
        reshard(task.model)
        if two and narrow:
            raise UseError(
                "a sharded model computes here in fewer bits than float32",
                hint="use --set learning.precision=float32, train adapters (--lora-rank), or do "
                "not shard",
            )
        require_rows_apart(task.model, task.loss, masked=task.masked, gradients=False)
        reshard(task.model)
        if two:
            _clear(task.parameters.values())  # gradients arrive there
            found = disagreement(task, sums=_shared_sum, gradient=_gradient_of, square=_square)
        else:
            found = disagreement(task, sums=_sum)
    if found is not None:
        raise _no_reference(found)


def _no_reference(reason: str) -> UseError:
    return UseError(
        "users cannot share a pass of this model, and a sharded one has no reference engine to "
        f"fall back to: {reason}",
        hint="freeze these layers, train adapters, keep no state in model and loss, or train on "
        "one process",
    )


def _shared_sum(task: Task, form: Forms) -> ClippedSum:
    """The sum of units that all processes have, as each of them would compute it."""
    total = _sum(task, form)
    for value in total.value.values():
        value.div_(dist.get_world_size())
    return total


def _gradient_of(task: Task) -> list[Tensor]:
    """The mean gradient of a unit that all processes have, by torch alone: this one's parts."""
    with torch.enable_grad():
        losses = checked_losses(task.loss, task.model, *task.units.all_rows())
        torch.autograd.backward(losses.mean() / dist.get_world_size())
    parts = [
        torch.zeros_like(local(p)) if p.grad is None else local(p.grad)
        for p in task.parameters.values()
    ]
    _clear(task.parameters.values())
    return parts


def _square(tensors: Iterable[Tensor]) -> float:
    """The squared norm of what is spread over the processes."""
    every = list(tensors)
    found = torch.tensor(squared_norm(every), device=every[0].device)
    dist.all_reduce(found)
    return float(found)


def _clear(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def nobody(model: nn.Module, *, masked: bool) -> Units:
    """A made-up unit of one row, on the device of the model."""
    device = next(iter(trainable_parameters(model).values())).device
    return made_up(model, Shape((1,), (6,)), masked=masked, device=device)


def _most(count: int, task: Task) -> int:
    """The largest of everybody's counts."""
    counts = torch.tensor([count], device=task.units.lengths.device)
    dist.all_reduce(counts, op=dist.ReduceOp.MAX)
    return int(counts)


def _all_sharded(task: Task) -> bool:
    sharded = {is_sharded(p) for p in task.parameters.values()}
    if len(sharded) > 1:
        raise UseError(
            "some trainable parameters are sharded and some are not",
            hint="shard with userdp.gradients.shards.shard, after the adapters are attached",
        )
    return sharded == {True}
