"""Counts of a step on a small model, made into those of a deep one.

The engines choose forms by shapes, look at values and allocate as they go; none of that happens on
tensors without memory. So a step is carried out in full, on real tensors, with layers of full
width, full length and vocabulary, but with few of them: with one layer and with two, with two units
in a pass and with three, with one pass and with two. Each operation, its bytes and the memory that
there is meanwhile are linear in all three, so that these tell those of any depth, any number of
units in a pass and any number of passes. (The most memory of all operations is not linear: in a
small model it is another operation's.) The two units and more are because a lone unit has another
path (`userdp.gradients.engines.tape`); where a pass holds at most three, it is counted as it is.

What is not linear is not predicted: layers of several kinds, passes of unequal units, layers
sharded over processes (the two-pass engine).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import token_losses
from userdp.gradients.cost.recording import Live, Op, Recorder
from userdp.gradients.cost.tracks import Life, Track, beyond, matched, peak_of, tracks_of
from userdp.gradients.engines import batched as one_pass, choice, get_engine, passes, tape, uses
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Form, choose_form
from userdp.gradients.engines.passes import formed_bytes, whole_bytes
from userdp.gradients.engines.rules import grams, linear
from userdp.gradients.losses import Loss
from userdp.gradients.units import Units

Step = Callable[[], object]
PLAIN = "plain"
"""The ordinary forward and backward pass, for a method's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is counted.

    Args:
        build: the model of so many layers, as it is trained, of full width.
        depth: layers of the model that is meant.
        loss: per-row loss.
        vocabulary: tokens are below it.
        length: of every row, in tokens.
        group_size: rows of every unit.
        device: "cpu" or "cuda", for which engines choose forms.
    """

    build: Callable[[int], nn.Module]
    depth: int
    loss: Loss
    vocabulary: int
    length: int
    group_size: int
    device: str = "cpu"

    def units(self, count: int) -> Units:
        """So many units of random tokens."""
        rows = count * self.group_size
        draw = torch.Generator().manual_seed(0)
        return Units(
            input_ids=torch.randint(self.vocabulary, (rows, self.length), generator=draw),
            lengths=torch.full((rows,), self.length),
            offsets=torch.arange(0, rows + 1, self.group_size),
        )


class Count(Counter[Op]):
    """How often each operation occurs. Differences and multiples may be negative or fractions."""

    def plus(self, other: Count, times: float) -> Count:
        """This and ``times`` the other."""
        total = Count(self)
        for op, number in other.items():
            total[op] += number * times  # type: ignore[assignment]  # a Counter of numbers
        return Count({op: number for op, number in total.items() if number})


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCount:
    """What a step needs at full depth.

    Attributes:
        fixed: operations whatever the number of passes.
        a_pass: operations of one pass.
        peaks: bytes of tensors at the peak, weights included: of a step of one pass, and of more.
        units: in a pass.
    """

    fixed: Count
    a_pass: Count
    peaks: tuple[float, float]
    units: int

    def of(self, passes: float) -> Count:
        """Operations of a step of so many passes."""
        return self.fixed.plus(self.a_pass, passes)

    def peak(self, passes: float) -> float:
        """Bytes of tensors at the peak of a step of so many passes."""
        return self.peaks[0 if passes <= 1 else 1]


@dataclass(frozen=True, slots=True)
class _Recorded:
    ops: tuple[Op, ...]
    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True)
class _Counted:
    ops: Count
    tracks: Mapping[str, Track]


def count_step(work: Work, method: str, *, units: int, parts: int | None = None) -> StepCount:
    """The operations and the memory of a step whose passes hold ``units`` units each.

    Args:
        work: what is computed.
        method: the name of an engine, or `PLAIN`.
        units: in a pass; the plain step's passes have as many rows.
        parts: as of `Engine`: where it is known, the few units that are counted are added up in
            float32.
    """
    by_depth, models = {}, {layers: work.build(layers) for layers in (1, 2)}
    too_many = _formed_bytes(work, models, method, units=units) > tape.KEPT_BYTES
    for layers, model in models.items():
        watched = _Watched(
            work,
            model,
            layers,
            method,
            most_units=min(units, 3),
            kept_bytes=0 if too_many else sys.maxsize,
            parts=parts,
        )
        by_depth[layers] = {passes: _at(watched, units=units, passes=passes) for passes in (1, 2)}
    deeper = work.depth - 1

    def deep(passes: int) -> Count:
        one, two = (by_depth[layers][passes].ops for layers in (1, 2))
        return one.plus(two, deeper).plus(one, -deeper)

    a_pass = deep(2).plus(deep(1), -1)

    def peak(passes: int) -> float:
        low, high = (by_depth[layers][passes].tracks for layers in (1, 2))
        return peak_of(low, high, deeper, kept=tape.KEPT_BYTES if too_many and passes > 1 else 0)

    return StepCount(
        fixed=deep(1).plus(a_pass, -1),
        a_pass=a_pass,
        peaks=(peak(1), peak(2)),
        units=units,
    )


def _formed_bytes(work: Work, models: Mapping[int, nn.Module], method: str, *, units: int) -> int:
    """What the engines that keep buffers form of the units of a pass, at full depth."""
    if method not in ("bookkeeping", "lora"):
        return 0
    cohort = work.units(1)
    shape = int(cohort.offsets[1]), cohort.input_ids.shape[1]
    with _changed([(passes, "choose_form", _choosing_for(work.device))]):
        one, two = (
            whole_bytes(task) if method == "lora" else sum(formed_bytes(task, *shape))
            for model in models.values()
            for task in [Task(model=model, loss=work.loss, units=cohort, l2_clip_norm=1.0)]
        )
    return units * (one + (work.depth - 1) * (two - one))


def _at(watched: _Watched, *, units: int, passes: int) -> _Counted:
    """Counted at so many units a pass, or from what two and three of them tell."""
    record = partial(watched.record, passes=passes)
    if units <= 3:
        found = record(units=units)
        return _Counted(Count(found.ops), tracks_of(found.ops, found.lives))
    two, three = record(units=2), record(units=3)
    more, total = units - 2, Count()
    for kind, begin, end, first, last in matched(two.ops, three.ops):
        if kind == "equal":
            pairs = zip(two.ops[begin:end], three.ops[first:last], strict=True)
            total.update(_beyond(a, b, more) for a, b in pairs)
        else:  # what is done unit by unit: a third unit's operations are as many as a fourth's
            total = total.plus(Count(two.ops[begin:end]), 1 - more)
            total = total.plus(Count(three.ops[first:last]), more)
    low, high = (tracks_of(one.ops, one.lives) for one in (two, three))
    return _Counted(total, {key: beyond(low[key], high[key], more) for key in low})


def _beyond(two: Op, three: Op, more: int) -> Op:
    """The operation at ``more`` units more than two, from what it is at two and at three."""

    def line(low: float, high: float) -> float:
        return low + more * (high - low)

    return replace(
        two,
        flops=line(two.flops, three.flops),
        moved=line(two.moved, three.moved),
        numbers=line(two.numbers, three.numbers),
        allocated=line(two.allocated, three.allocated),
    )


def step_of(
    method: str,
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    rows: int,
    clip: float = 1.0,
    parts: int | None = None,
) -> Step:
    """A step's gradients by ``method``, in passes of at most ``rows`` rows; ``parts`` as there."""
    if method == PLAIN:
        return partial(_plain_step, model, loss, units, rows)
    engine = get_engine(method)
    return partial(engine, model, loss, units, l2_clip_norm=clip, micro_batch=rows, parts=parts)


def _plain_step(model: nn.Module, loss: Loss, units: Units, rows: int) -> None:
    count = len(units.lengths)
    model.zero_grad(set_to_none=True)
    for begin in range(0, count, rows):
        here = slice(begin, begin + rows)
        losses = loss(model, units.input_ids[here], units.lengths[here])
        torch.autograd.backward(losses.sum() / count)


@contextmanager
def passes_of(
    units: int, *, most_rows: int, device: str, kept_bytes: int | None = None
) -> Iterator[None]:
    """Within, engines put so many units into a pass, and choose forms as on ``device``.

    They ask the device that tensors lie on, and here that is a CPU whatever device is meant.

    Args:
        units: in a pass.
        most_rows: for which the engines prove that a model keeps rows apart, once for all passes.
        device: "cpu" or "cuda".
        kept_bytes: most that buffers which outlive a pass may take; None leaves it as it is.
    """
    changes: list[tuple[object, str, object]] = [
        (one_pass, "cut", partial(_cut, most_units=units)),
        (choice, "largest_passes", lambda micro_batch, width, **of: [(most_rows, width)]),
        (linear, "choose_form", _choosing_for(device)),
    ]
    if device != "cpu":  # where a CPU takes blocks that stay in its caches
        changes.append((grams, "gram", grams.device_gram))
        changes.append((linear, "_form", linear.form_runs))
        changes += [(module, "added_at_once", _at_once) for module in (linear, uses)]
        changes.append((token_losses, "_CHUNK", token_losses._DEVICE_CHUNK))
    if kept_bytes is not None:
        changes.append((tape, "KEPT_BYTES", kept_bytes))
    with _changed(changes):
        yield


@contextmanager
def _changed(changes: list[tuple[object, str, object]]) -> Iterator[None]:
    """Within, (module, name, value) are in the places of what the engines call."""
    kept = [getattr(module, name) for module, name, _ in changes]
    try:
        for module, name, changed in changes:
            setattr(module, name, changed)
        yield
    finally:
        for (module, name, _), value in zip(changes, kept, strict=True):
            setattr(module, name, value)


def units_in_pass(task: Task, form: Form | None, *, device: str, memory: float) -> int:
    """How many units the engines put into a task's first pass on ``device`` of ``memory`` bytes."""
    changes: list[tuple[object, str, object]] = [(passes, "choose_form", _choosing_for(device))]
    if device != "cpu":
        changes.append((passes, "rows_per_pass", lambda width, micro_batch, device: micro_batch))
        changes.append((passes, "device_bytes", lambda device: int(memory)))
    with _changed(changes):
        cut, _ = one_pass.cut(task, form)
        return len(cut[0].numbers)


def _choosing_for(device: str) -> Callable[..., Form]:
    """`choose_form` for ``device``, whatever device is asked for."""
    return lambda **shape: choose_form(**{**shape, "device": device})


def _at_once(rows: int, *options: object) -> Iterator[slice]:
    """As `uses.added_at_once` on an accelerator."""
    yield slice(0, rows)


def _cut(
    task: Task, form: Form | None = None, *, most_units: int
) -> tuple[list[passes.Pass], list[int]]:
    """As `one_pass.cut`: passes of so many units, which are all of one shape."""
    rows, width = int(task.units.offsets[1]), task.units.input_ids.shape[1]
    shape = passes.PassShape(min(most_units, len(task.units)), rows, width)
    numbers = range(len(task.units))
    starts = numbers[::most_units]
    return [passes.Pass(tuple(numbers[at : at + most_units]), shape) for at in starts], []


class _Watched:
    """One small model whose steps are recorded.

    Args:
        work: what is computed.
        model: of ``layers`` layers.
        layers: how many.
        method: an engine or `PLAIN`.
        most_units: in a pass of any record.
        kept_bytes: see `passes_of`.
        parts: see `count_step`.
    """

    def __init__(
        self,
        work: Work,
        model: nn.Module,
        layers: int,
        method: str,
        *,
        most_units: int,
        kept_bytes: int,
        parts: int | None,
    ) -> None:
        self._parts = parts
        self._work, self._model, self._layers = work, model, layers
        self._method, self._most_rows = method, most_units * work.group_size
        self._kept_bytes = kept_bytes
        self._layer_of = _layers(model, layers)
        # The engine's checks of a model come with its first step.
        self._step(units=min(2, most_units), passes=1)

    def _step(self, *, units: int, passes: int, within: Recorder | None = None) -> None:
        work, rows = self._work, units * self._work.group_size
        # `vmap` fills its passes with rows; the others are told otherwise how many there are.
        asked = rows if self._method in (PLAIN, "vmap") else self._most_rows
        cohort = work.units(units * passes)
        step = step_of(self._method, self._model, work.loss, cohort, rows=asked, parts=self._parts)
        self._model.zero_grad(set_to_none=True)
        with (
            passes_of(
                units,
                most_rows=self._most_rows,
                device=work.device,
                kept_bytes=self._kept_bytes,
            ),
            within or nullcontext(),
        ):
            step()

    def record(self, *, units: int, passes: int) -> _Recorded:
        """A step of so many passes of so many units each."""
        live = Live(self._layer_of, self._layers)
        live.added(sum(t.numel() * t.element_size() for t in _state(self._model)))
        recorder = Recorder(live, copies=self._work.device == "cpu")
        self._step(units=units, passes=passes, within=recorder)
        return _Recorded(tuple(recorder.ops), tuple(recorder.lives))


def _state(model: nn.Module) -> list[Tensor]:
    """All that a model holds, each tensor once."""
    return [*model.parameters(), *model.buffers()]


def _layers(model: nn.Module, layers: int) -> dict[int, int | None]:
    """The layer of each parameter's storage: its place in the list of layers, if in one."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == layers]
    if not lists:
        raise UseError(
            f"the model has no list of {layers} layers, so what one layer costs cannot be told "
            "from the rest",
            hint="a prediction needs a model of transformers whose layers are a list of modules",
        )
    largest = max(lists, key=lambda held: sum(p.numel() for p in held.parameters()))
    found: dict[int, int | None] = dict.fromkeys(map(_address, model.parameters()))
    for number, layer in enumerate(largest):
        found.update((_address(parameter), number) for parameter in layer.parameters())
    return found


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
