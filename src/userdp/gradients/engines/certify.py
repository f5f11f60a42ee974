r"""`certificate`: that passes of one shape keep their units apart, asked once, on made-up rows.

**The proof.** 1. One pass of the shape is followed from function to function (`Proving`, by
`certificate.rows`): where it is proved, row r's loss is a function of constants and of row r,
*whatever the rows hold*, since no rule of a place looks at contents. 2. Nothing was read from data
by Python, so code that runs again at the same shape takes the same branches, unless something else
changed; every later pass is therefore compared, call by call, with the one that was followed
(`engines.comparing`). By induction over its calls it is proved too. 3. Constants are what model and
loss hold, and a pass that writes to any of it is not used (`certificate.state`). So a unit's
gradient in its place is a function of that unit, of its place's masks and of constants. 4. Shapes
are fixed, so in each place the same kernels run: *a unit's bits are its own*, where places give
equal bits. That is measured here: units are computed once, and once more, each in the place behind
it, beside others; squared norms of all gradients must be the same to the last bit. In float32 they
may differ by `_ROUNDING`, for which the margin of the clip has room, at weights of about the size
at which they were measured; else places that differ are not used.

*Assumed:* equal kernels on equal shapes give equal results in each place of each later pass;
torch's functions are what they are documented to be; the operator hides no code from torch.

**Where a proof ends** is told to people by the names of layers: "2 layers model.layers.*.mlp.gate
(MixtralTopKRouter): its choice could be tipped by the rounding of a batch (topk)".
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_modules

from userdp.gradients.certificate.calls import ASKS, Calls, Seen, told
from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.certificate.made_up import (
    CANNOT_RUN,
    Answers,
    Shape,
    circumstances,
    failed,
    made_up,
)
from userdp.gradients.certificate.places import CONSTANT, FIRST, Place
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.certificate.state import State, writes
from userdp.gradients.engines.comparing import Comparing, Following, NotCoveredError
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.layer import RULES, at_most_one_of_rows
from userdp.gradients.engines.passes import Pass, PassShape
from userdp.gradients.engines.rules.broadcast import ELEMENTWISE, with_rows
from userdp.gradients.engines.tape import Tape, Workspace
from userdp.gradients.engines.uses import Forms
from userdp.gradients.losses import row_losses
from userdp.gradients.model_randomness import GeneratorStates, known_randomness
from userdp.gradients.modes import eagerly
from userdp.gradients.precision import is_narrow, margin
from userdp.gradients.shards import reshard
from userdp.gradients.units import Units


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """What holds for passes of one shape.

    Attributes:
        calls: what each of them must do.
        places: that are used; at least two.
        held: tensors out of sight (in a cache, say) that passes must be given, and their versions.
        size: of the weights (`Task.size`) at which places were found to round alike; None where a
            unit's bits are the same in each of them, at any weights.
    """

    calls: Calls
    places: tuple[int, ...]
    held: tuple[tuple[Tensor, int], ...] = ()
    size: int | None = None

    @property
    def unwritten(self) -> bool:
        """Whether nothing was written to what is held out of sight."""
        return all(writes(tensor) == version for tensor, version in self.held)


_Make: TypeAlias = Callable[[Workspace, Callable[[Tape], Following]], Tape]
"""What makes a tape of the passes that are asked about."""

_known: Answers[Certificate | str] = Answers()

_ROUNDING = 0.01
"""Part of the clip's margin by which norms may differ in two places: it then covers 10^4 units
whose rounding is independent, and 100 whatever it is (`engines.batched`)."""


def certificate(
    task: Task, shape: PassShape, form: Forms, kind: type[Tape] = Tape
) -> Certificate | str:
    """What holds for passes of ``shape``, or why they are not used; neither depends on data.

    Asked once for each model, loss, mode, set of trainable parameters and shape; where places round
    otherwise, again when the weights have doubled or halved.

    Args:
        task: whose model and loss are asked; none of its rows is read.
        shape: of the passes.
        form: of linear layers.
        kind: of tape that watches them.
    """
    here = circumstances(task.model, task.parameters, masked=task.masked)
    key = shape, str(form), task.item_clip_norm is None, here
    known = _known.of(task.model, task.loss)
    found = known.get(key)
    size = found.size if isinstance(found, Certificate) else None
    if found is None or (size is not None and size != task.size):
        with known_randomness("made-up rows"):
            known[key] = _asked(task, shape, partial(kind, task, shape, form=form))
    return known[key]


def _asked(task: Task, shape: PassShape, make: _Make) -> Certificate | str:
    units, first = _made_up(task, shape), tuple(range(shape.units))
    here, there = (
        Pass(order, first, shape).of(units) for order in (first, (shape.units, *first[:-1]))
    )
    begun = GeneratorStates.read()
    kept = State(task.model, task.loss)
    try:
        # A cache that is filled once for a shape (a mask, a rotary table) is then no change.
        with eagerly():
            row_losses(task.loss, task.model, *here.all_rows())
        reshard(task.model)
        if kept.changed():  # in passes of other shapes too, from now on
            _known.of(task.model, task.loss).clear()
        state = State(task.model, task.loss)
        workspace = Workspace(state.tensors())
        squares, calls = _proved(make, workspace, here)
        ended = GeneratorStates.read()
        if (ended.numpy, ended.python) != (begun.numpy, begun.python):
            return "it draws from Python's or NumPy's generator, whose numbers all rows share"
        if state.changed():
            return "a pass writes to what the model or the loss holds"
        if calls.drew:  # masks differ by place
            with evaluating(task.model):
                squares, moved = (_proved(make, workspace, each)[0] for each in (here, there))
        else:
            moved = _squares(make(workspace, partial(Comparing, known=calls)), there)
        kept = state
    except NotCoveredError as error:
        return str(error)
    except CANNOT_RUN as error:
        return failed(error)
    finally:
        kept.put_back()
    rows = 1 if task.item_clip_norm is None else shape.rows
    one, other = squares[:, :-rows], moved[:, rows:]
    same = (one == other) | (one.isnan() & other.isnan())
    held = tuple((tensor, writes(tensor)) for tensor in workspace.strangers)
    found = Certificate(calls=calls, places=first, held=held)
    if bool(same.all()):
        return found
    if not any(map(is_narrow, task.dtypes)):
        apart = (one.sum(0).sqrt() / other.sum(0).sqrt() - 1).abs().nan_to_num()
        if float(apart.max()) <= _ROUNDING * margin(task.dtypes):
            return replace(found, size=task.size)
    places = _longest_run(same.all(0).view(-1, rows).all(1).tolist())
    if len(places) < 2:
        return "a unit's last bits hang on its place in a pass on this machine"
    return replace(found, places=places)


def _longest_run(equal: list[bool]) -> tuple[int, ...]:
    """The most places in a row such that each gives the same bits as the next.

    >>> _longest_run([True, False, True, True])
    (2, 3, 4)
    """
    runs = [
        [at for at, _ in run] for same, run in groupby(enumerate(equal), lambda e: e[1]) if same
    ]
    best = max(runs, key=len, default=[])
    return (*best, best[-1] + 1) if best else ()


def _proved(make: _Make, workspace: Workspace, units: Units) -> tuple[Tensor, Calls]:
    """Squared norms by parameter and unit, of a pass that is followed; and what it did.

    Where it was given tensors that nothing in sight holds, once more, with these as constants: the
    same ones must come again.
    """
    tape = make(workspace, Proving)
    proving = tape.calls
    assert isinstance(proving, Proving)
    try:
        squares = _squares(tape, units)
    except NotCoveredError:
        strangers = proving.rows.strangers
        if not strangers or workspace.strangers:
            raise
        workspace.strangers = list({id(one): one for one in strangers}.values())
        return _proved(make, workspace, units)
    proving.done.drew = proving.rows.drew
    return squares, proving.done


def _squares(tape: Tape, units: Units) -> Tensor:
    tape.run(units)
    with torch.no_grad():
        return torch.stack(list(tape.squares_by_name().values()))


def _made_up(task: Task, shape: PassShape) -> Units:
    """One unit more than the pass has places, of rows of many lengths, the second one whole."""
    most, count = max(shape.width, 8), shape.units + 1
    lengths = [2 + (5 * row + 3) % (most - 1) for row in range(count * shape.rows)]
    lengths[1] = most
    wanted = Shape((shape.rows,) * count, tuple(min(one, shape.width) for one in lengths))
    return made_up(task.model, wanted, masked=task.masked, device=task.units.lengths.device)


class Proving(Following):
    """Proves a pass that has rules answer where they may, and notes what it did.

    Attributes:
        done: the calls.
        rows: what follows the rows of the pass.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.done = Calls()
        self.rows = Rows(tape.layout.rows, [*tape.workspace.held, *tape.workspace.strangers])
        self._tape: Tape = weakref.proxy(tape)  # which holds this: its pass is large

    def place_of(self, tensor: Tensor) -> Place | None:
        place = self.rows.place_of(tensor)
        self.done.asked.append((tensor.shape, place))
        return place

    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        return self.rows.mark(tensor, place)

    @contextmanager
    def watching(self, model: nn.Module, by_row: Iterable[Tensor | None]) -> Iterator[None]:
        """As of `Following`; and it is known which module of ``model`` computes."""

        def enter(module: nn.Module, arguments: object) -> None:
            self.rows.inside.append(module)

        def leave(module: nn.Module, arguments: object, result: object) -> None:
            self.rows.inside.pop()

        self._model = model
        for tensor in by_row:
            if tensor is not None:
                self.rows.mark(tensor, FIRST)
        handles = (  # not in the modules: a rule asks whether somebody hooked into them
            of_modules.register_module_forward_pre_hook(enter),
            of_modules.register_module_forward_hook(leave, always_call=True),
        )
        try:
            with self.rows.watching(model), self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def ran(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        if func in ASKS or self.rows.aside:
            return func(*args, **kwargs)
        return self._answer(func, args, kwargs)

    def _answer(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        tape, calls = self._tape, self.done
        rule, answer = RULES.get(func), None
        # A call is noted before it runs: checkpointing may end it by an error.
        number, asked = len(calls.seen), len(calls.asked)
        seen = Seen(func, told(tape.told_names, func, args, kwargs))
        calls.seen.append(seen._replace(ruled=rule is not None))
        if rule is not None and torch.is_grad_enabled():
            fits = at_most_one_of_rows(tape, (*args, *kwargs.values()))
            del calls.asked[asked:]  # what a rule asks is all that is asked again
            answer = rule(tape, *args, **kwargs) if fits else None
        if answer is None:
            del calls.asked[asked:]
            spread = with_rows(tape, func, args, kwargs) if func in ELEMENTWISE else None
            if spread is None:
                del calls.asked[asked:]
            calls.seen[number] = seen = seen._replace(spread=spread is not None)
            answer = self.rows.run(func, spread or args, kwargs)
            calls.seen[number] = seen._replace(made=self._made(answer))
        return answer

    def _made(self, result: object) -> bool:
        """Whether parameters and constants alone made ``result``, which then has a name."""
        if not (self._tape.derives and self._tape.layout.rows > 1 and torch.is_grad_enabled()):
            return False
        parts = result if isinstance(result, tuple | list) else (result,)
        mine = [p for p in parts if isinstance(p, Tensor) and self.rows.place_of(p) == CONSTANT]
        return len(mine) == len(parts) and self._tape.name_made(result)

    def prove(self, losses: Tensor) -> bool:
        return self.rows.prove(losses)

    def require_apart(self, proved: bool, missed: Sequence[str]) -> None:
        lost = self.rows.lost
        if lost is not None and not self.rows.kept_apart():
            kind = self.rows.kinds[lost]
            alike = [name for name, m in self._model.named_modules() if type(m).__name__ == kind]
            raise NotCoveredError(_told(alike, kind, lost))
        if not (proved and self.rows.kept_apart()):
            raise NotCoveredError("its losses are not proved to keep rows apart")
        if missed:
            raise NotCoveredError("; ".join(_without_rule(self._model, missed)))


def _told(modules: Sequence[str], kind: str, reason: str) -> str:
    """A kind of layer, the names of such layers in the model, and what is the matter with them."""
    patterns = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in modules)
    count, where = len(modules), ", ".join(patterns) or "model"
    return f"{f'{count} layers ' if count > 1 else ''}{where} ({kind}): {reason}"


def _without_rule(model: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """The layers of these parameters, told once for each class and set of parameters."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for home, parts in groupby((name.rpartition(".") for name in names), itemgetter(0)):
        kind = type(model.get_submodule(home)).__name__
        kinds.setdefault((kind, ", ".join(own for _, _, own in parts)), []).append(home)
    for (kind, own), homes in kinds.items():
        yield _told(homes, kind, f"no per-unit rule for its {own}")
