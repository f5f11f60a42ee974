"""Which random numbers a model draws in a pass, and whether each of them belongs to one row.

Several units may share a pass only if no random number is shared by its rows. A coin that skips a
layer for the whole batch (LayerDrop), dropout of position embeddings of shape (1, length, width),
or of weights, is one number for all who sit in the pass. Who sits together depends on the cohort:
leave one user out, and users behind move to other passes, so that two of them share a coin where
they did not. Their masks then have another *joint* law, and no coupling gives everybody equal
masks (`userdp.gradients.model_randomness`, 1). Such models have each unit computed alone: within a
unit's own passes sharing is a matter of its own rows.

Every random operation of torch carries a tag, so they are seen below autograd, whatever layer or
fused kernel asks for them; that one has drawn shows in the generators' states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from userdp.errors import FailureError, UseError
from userdp.gradients.held_state import IN_MODULES
from userdp.gradients.losses import Loss, row_losses
from userdp.gradients.made_up import Answers, Shape, if_it_runs, made_up
from userdp.gradients.model_randomness import GeneratorStates, device_states, secretly, seeds
from userdp.gradients.models import trainable_parameters
from userdp.gradients.modes import DispatchMode, eagerly, run_backward
from userdp.gradients.notes import plain_parts
from userdp.gradients.shards import is_sharded, reshard
from userdp.gradients.units import Units

_FEW, _MORE = 2, 3
"""Rows of the two passes that are compared: what has one size in both is shared by rows."""

_WIDTH = 7
"""Tokens of each such row; neither number divides it."""
_REPEATS = 3
_CLOSE = 1e-3
"""Relative: devices add in another order each time; another mask moves a loss by far more."""

_TRIALS = 12
"""A random order of three rows leaves a given one in its place once in three: all, 2e-6."""

_SIMPLE = (bool, int, float, str, type, type(None))
"""Settings are of these types; other objects are looked into for them."""

_MOST_SETTINGS = 16
"""Of a model's settings so many answers are remembered: a schedule may have a new one each step."""


class Draws(StrEnum):
    """What a model draws in a pass.

    NONE: nothing. PER_ROW: something for each row, along the first dimension of what is drawn.
    FLATTENED: several things for each row there, such as its positions. SHARED: others too, or some
    that cannot be seen; units are then computed one at a time.
    """

    NONE = "none"
    PER_ROW = "per row"
    FLATTENED = "flattened"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Draw:
    """One random operation: its name, the size of what it drew, and the states it began from."""

    operation: str
    first: int
    begin: tuple[bytes, ...]


class DrawWatch(DispatchMode):
    """Within, every random operation of torch on default generators is noted.

    Attributes:
        draws: in order; what recomputation draws again comes again.
        unseen: torch's generators moved without an operation that is tagged as random.
    """

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []
        self.unseen = False
        self._known = {_torch_states()}
        self._seeds = seeds()

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if seeds() != self._seeds:
            raise UseError(
                f"the model seeds a generator before it draws ({name}): masks are then known",
                hint="do not seed inside the model or the loss",
            )
        begin = self.look()
        result = func(*args, **kwargs)
        end = _torch_states()
        given = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Generator)]
        if end == begin and given:
            raise UseError(
                f"the model draws from a generator of its own ({name}): what it draws for one user "
                "depends on how much it drew for others, from a seed that may be known",
                hint="draw from torch's default generator, as torch.nn.functional.dropout does",
            )
        if end != begin:
            self._known.add(end)
            first = next(t for t in tree_leaves(result) if isinstance(t, Tensor))
            self.draws.append(Draw(name, first.shape[0] if first.dim() else 0, begin))
        return result

    def look(self) -> tuple[bytes, ...]:
        """The states now; note whether they moved since the last operation."""
        now = _torch_states()
        self.unseen = self.unseen or now not in self._known
        return now


def _torch_states() -> tuple[bytes, ...]:
    return tuple(device_states().values())


_draws: Answers[Draws] = Answers()
_replayable: Answers[bool] = Answers()


@secretly
def draws_of(model: nn.Module, loss: Loss, units: Units) -> Draws:
    """What ``model`` draws in a pass over several units, in the mode it is in.

    Asked once for each model, loss and setting of the modules (modes, rates), on made-up rows:
    two passes of 2 and 3 rows, of one width. A draw belongs to rows if its size grows
    as their number. A row's loss must not change when the other rows and their parts of the draws
    do and the generators begin from the same states. The answer is a property of the model's code,
    not of anybody's data; that each later pass is as it says is checked there (`watching_draws`).

    Raises:
        UseError: as `require_replayable`.
    """
    if not len(units.lengths):
        return Draws.NONE  # nothing will be computed
    known, key = _draws.of(model, loss), (units.targets is not None, *_settings(model))
    if key not in known:
        _forget_old(known)
        answer = Draws.SHARED  # where it cannot be told
        with eagerly(), if_it_runs():
            answer = _ask(model, loss, units)
        known[key] = answer
    return known[key]


@secretly
def require_replayable(model: nn.Module, loss: Loss, units: Units) -> None:
    """Refuse a model whose masks cannot be kept, also where each unit is computed alone.

    Asked once for each model, loss and setting of the modules, in one pass over a made-up row.
    A model that such a row does not fit is not refused.

    Raises:
        UseError: recomputation in the backward pass draws other numbers than the forward pass did,
            or the model seeds a generator, or draws from one of its own.
    """

    if not len(units.lengths):
        return
    known, key = _replayable.of(model, loss), (units.targets is not None, *_settings(model))
    if key not in known:
        with eagerly(), if_it_runs():
            _watched(model, loss, _rows(model, units, 1))
        _forget_old(known)
        known[key] = True


def _forget_old(known: dict[Any, Any]) -> None:
    """Make room for the answer at another setting."""
    if len(known) >= _MOST_SETTINGS:
        known.clear()


@contextmanager
def watching_draws(kind: Draws, rows: int) -> Iterator[None]:
    """Within, a pass over ``rows`` rows of several units draws what ``kind`` says, or stops.

    Also where it ends in an error: its units may be computed again under the masks that it had.

    Raises:
        FailureError: it drew something else; nothing of the pass may be used.
    """
    watch = DrawWatch() if kind in (Draws.PER_ROW, Draws.FLATTENED) else None

    def otherwise() -> bool:
        if watch is None:
            return False
        watch.look()
        firsts = {draw.first for draw in watch.draws}
        each = firsts <= {rows} if kind is Draws.PER_ROW else not any(n % rows for n in firsts)
        return watch.unseen or 0 in firsts or not each

    with _stopping(otherwise), watching_host(kind), nullcontext() if watch is None else watch:
        yield


@contextmanager
def watching_host(kind: Draws) -> Iterator[None]:
    """Within, no generator moves that ``kind`` says does not, of those that are not torch's any.

    Raises:
        FailureError: as `watching_draws`.
    """
    before = GeneratorStates.read()

    def otherwise() -> bool:
        after = GeneratorStates.read()
        return after.host != before.host or (kind is Draws.NONE and after != before)

    with _stopping(otherwise):
        yield


@contextmanager
def _stopping(otherwise: Callable[[], bool]) -> Iterator[None]:
    """Within is a pass; behind it, whether it ended in an error or not, ``otherwise`` stops all."""
    ended: Exception | None = None
    try:
        yield
    except Exception as error:  # whatever the model's and the loss's code raise
        ended = error
    if otherwise():
        raise _otherwise() from None  # whose words may quote rows
    if ended is not None:
        raise ended


def require_drawn(kind: Draws, drew: bool) -> None:
    """Refuse a pass that threw coins though its model draws nothing, whatever the states say.

    `watching_draws` sees the states behind the pass, and a model may have put them back.

    Raises:
        FailureError: as `watching_draws`.
    """
    if drew and kind is Draws.NONE:
        raise _otherwise()


def require_no_draws(kind: Draws, names: Sequence[str]) -> None:
    """Refuse a pass of a model that draws where rows are not seen to be kept apart.

    Raises:
        FailureError: it draws; ``names`` say what was not followed.
    """
    if kind is not Draws.NONE:
        raise FailureError(
            f"in a pass of a model that draws random numbers, {', '.join(names[:3])} could not be "
            "followed, as it could in passes before, and users of one pass may share them; "
            "training stopped before this update",
            hint="take --engine reference, which computes each user alone, or set dropout to 0",
        )


def _otherwise() -> FailureError:
    return FailureError(
        "the model or the loss drew random numbers, or seeded a generator, as it had not before, "
        "and users of one pass may share them; training stopped before this update",
        hint="take --engine reference, which computes each user alone",
    )


def _ask(model: nn.Module, loss: Loss, units: Units) -> Draws:
    few, more = _rows(model, units, _FEW), _rows(model, units, _MORE)
    before = GeneratorStates.read()
    first, second = _watched(model, loss, few), _watched(model, loss, more)
    if GeneratorStates.read() == before:
        return Draws.NONE
    if first is None or second is None or len(first) != len(second):
        return Draws.SHARED
    for one, other in zip(first, second, strict=True):
        same = one.operation == other.operation
        if not (same and one.first and one.first * _MORE == other.first * _FEW):
            return Draws.SHARED
    if not _stands_alone(model, loss, more):
        return Draws.SHARED
    return Draws.PER_ROW if {one.first for one in first} == {_FEW} else Draws.FLATTENED


def _watched(model: nn.Module, loss: Loss, units: Units) -> list[Draw] | None:
    """The draws of one forward pass; None where it drew what cannot be seen or kept apart.

    The backward pass runs too, to see what recomputation draws.
    """
    # Before the pass: within it FSDP puts gathered tensors in the places of parameters.
    parameters = list(trainable_parameters(model).values())
    before, watch = GeneratorStates.read(), DrawWatch()
    with watch, torch.enable_grad():
        losses = row_losses(loss, model, units.input_ids, units.lengths, units.targets)
        watch.look()
        drawn = list(watch.draws)
        middle = GeneratorStates.read()
        if losses.requires_grad:
            _backward(losses.sum(), parameters)
    _require_repeatable(model, loss, units, before, losses.detach())
    again = watch.draws[len(drawn) :]
    begun = {draw.begin for draw in drawn}
    if GeneratorStates.read() != middle or any(draw.begin not in begun for draw in again):
        raise UseError(
            "the backward pass draws random numbers that the forward pass did not: layers that are "
            "computed again (activation checkpointing) would see other masks",
            hint="checkpoint with preserve_rng_state=True, and draw from torch's generators only",
        )
    return None if watch.unseen or middle.host != before.host else drawn


def _require_repeatable(
    model: nn.Module, loss: Loss, units: Units, begin: GeneratorStates, losses: Tensor
) -> None:
    """Refuse a model that says something else of the same rows from the same random numbers.

    It keeps a state, or draws from a generator that is out of reach, wherever these are kept.
    """
    end = GeneratorStates.read()
    for _ in range(_REPEATS):
        begin.load()
        with torch.no_grad():
            again = row_losses(loss, model, units.input_ids, units.lengths, units.targets)
        if not torch.allclose(again.double(), losses.double(), rtol=_CLOSE, equal_nan=True):
            raise UseError(
                "the model's answer changes from one pass over the same rows to the next, though "
                "all generators begin from the same states: it keeps a state, or draws from a "
                "generator of its own, so that what it says of one user depends on others",
                hint="keep no state, and draw from torch's default generator, as "
                "torch.nn.functional.dropout does",
            )
    reshard(model)  # a forward pass alone leaves parameters gathered
    end.load()


def _backward(total: Tensor, parameters: list[nn.Parameter]) -> None:
    """A backward pass that leaves nothing behind."""
    sharded = any(map(is_sharded, parameters))  # FSDP finishes a pass by writing to ``.grad``
    run_backward(total, () if sharded else parameters, accumulate=sharded)
    if sharded:
        for parameter in parameters:
            parameter.grad = None


def _stands_alone(model: nn.Module, loss: Loss, units: Units) -> bool:
    """Whether a row's loss stays as it is when other rows and their random numbers change.

    The generators do not: all that is drawn is as before, and then the other rows' parts of it are
    others. So a number that has one row's place and goes to all, as the mean of one coin for each
    row, is found to be shared.

    Nor may the others decide how much is drawn, as where a CPU draws slopes for negative numbers
    only (RReLU): a row's masks could then not be had again without them. Asked several times, as a
    random order of the rows leaves a row in its place now and then.
    """
    return all(_row_stands_alone(model, loss, units, trial % _MORE) for trial in range(_TRIALS))


class _OthersDraw(DispatchMode):
    """Within, of all that is drawn, only the part of one row is what it was.

    Args:
        row: its place.
        rows: in the pass; each has an equal part of a draw's first dimension.
    """

    def __init__(self, row: int, rows: int) -> None:
        super().__init__()
        self._row, self._rows = row, rows

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        result = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return result
        for drawn in tree_leaves(result):
            if not (isinstance(drawn, Tensor) and drawn.dim() and drawn.numel()):
                continue
            each = drawn.shape[0] // self._rows
            own = drawn[self._row * each : (self._row + 1) * each].clone()
            drawn.copy_(_mirrored(drawn))
            drawn[self._row * each : (self._row + 1) * each] = own
        return result


def _mirrored(drawn: Tensor) -> Tensor:
    """Other numbers in the same range: masks, uniform numbers, indices."""
    if drawn.dtype == torch.bool:
        return ~drawn
    if drawn.is_floating_point() or bool((drawn <= 1).all()):
        return 1 - drawn
    return drawn.max() + drawn.min() - drawn


def _row_stands_alone(model: nn.Module, loss: Loss, units: Units, row: int) -> bool:
    moved = units.input_ids.roll(1, dims=1)
    moved[row] = units.input_ids[row]
    begin = GeneratorStates.read()
    both, ends = [], []
    for input_ids, mode in (
        (units.input_ids, nullcontext()),
        (moved, _OthersDraw(row, len(moved))),
    ):
        begin.load()
        with torch.no_grad(), mode:
            losses = row_losses(loss, model, input_ids, units.lengths, units.targets)
        both.append(losses[row].double())
        ends.append(GeneratorStates.read())
    # Same shapes and places: not even rounding may differ, but kernels may choose by values.
    close = torch.isclose(both[0], both[1], rtol=1e-3, atol=1e-6, equal_nan=True)
    return bool(close) and ends[0] == ends[1]


def _rows(model: nn.Module, like: Units, count: int) -> Units:
    """So many made-up rows of one width, each a unit."""
    shape = Shape((1,) * count, (_WIDTH,) * count)
    masked, device = like.targets is not None, like.lengths.device
    return made_up(model, shape, masked=masked, device=device)


def _settings(model: nn.Module) -> tuple[object, ...]:
    """What a module's draws may hang on and a caller may change: modes, rates, switches.

    Whatever they hold by themselves, and what is in the containers and objects that they hold. What
    changes within a step is refused (`held_state`); what changes between steps is asked about anew.
    """
    held: list[object] = []
    for module in model.modules():
        held.append(type(module))
        held += [value for key, value in vars(module).items() if key not in IN_MODULES]
    # Told of types, of which there are few: each step asks for thousands of values.
    simple = {kind for kind in set(map(type, held)) if issubclass(kind, _SIMPLE)}
    settings = [value for value in held if type(value) in simple]
    others = {id(value): value for value in held if type(value) not in simple}
    return (
        *map(_as_told, settings),
        *map(_told, others.values()),
        *(p.requires_grad for p in model.parameters()),
    )


def _told(value: Any) -> object:
    """What plain values a container, or an object such as a configuration, holds by itself."""
    if isinstance(value, Tensor | nn.Module | FunctionType):
        return None
    own: object = getattr(value, "__dict__", None)
    parts = plain_parts(value)
    if parts is not None or not isinstance(own, dict):
        return parts
    return tuple((key, _as_told(part)) for key, part in own.items() if isinstance(part, _SIMPLE))


def _as_told(value: object) -> tuple[type, object]:
    return type(value), repr(value) if isinstance(value, float) else value  # NaN is not itself
