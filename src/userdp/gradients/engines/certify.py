r"""`certificate`: that passes of one shape keep their units apart, asked once, on made-up rows.

**The proof.** 1. One pass of the shape is followed from function to function
(`certificate.rows`): where it is proved, row r's loss is a function of constants and of row r,
*whatever the rows hold*, since no rule of a place looks at contents. 2. Nothing was read from data
by Python, so code that runs again at the same shape takes the same branches, unless something else
changed; every later pass is therefore compared, call by call, with the one that was followed
(`certificate.calls`). By induction over its calls it is proved too. 3. Constants are what model and
loss hold, and a pass that writes to any of it is not used (`certificate.state`). So a unit's
gradient in its place is a function of that unit, of its place's masks and of constants. 4. Shapes
are fixed, so in each place the same kernels run: *a unit's bits are its own*, where places give
equal bits. That is measured here: units are computed once, and once more, each in the place behind
it, beside others; squared norms of all gradients must be the same to the last bit. In float32 they
may differ by `_ROUNDING`, for which the margin of the clip has room, at weights of about the size
at which they were measured; else places that differ are not used.

*Assumed:* equal kernels on equal shapes give equal results in each place of each later pass;
torch's functions are what they are documented to be; the operator hides no code from torch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from userdp.errors import UseError
from userdp.gradients.certificate.calls import Calls
from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.certificate.made_up import CANNOT_RUN, Answers, Shape, large, made_up
from userdp.gradients.certificate.rows import writes
from userdp.gradients.certificate.state import State
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.forms import Forms
from userdp.gradients.engines.passes import Pass, PassShape, layout_of
from userdp.gradients.engines.tape import KnownTape, NotCoveredError, Tape, Workspace
from userdp.gradients.engines.uses import Layout
from userdp.gradients.losses import row_losses
from userdp.gradients.model_randomness import known_randomness, seeds
from userdp.gradients.modes import eagerly
from userdp.gradients.precision import is_narrow, margin
from userdp.gradients.units import Units
from userdp.out_of_memory import ran_out_of_memory


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


_known: Answers[Certificate | str] = Answers()

_ROUNDING = 0.01
"""Part of the clip's margin by which norms may differ in two places: it then covers 10^4 units
whose rounding is independent, and 100 whatever it is (`engines.batched`)."""


def certificate(task: Task, shape: PassShape, form: Forms) -> Certificate | str:
    """What holds for passes of ``shape``, or why they are not used; neither depends on data.

    Asked once for each model, loss, mode, set of trainable parameters and shape; where places round
    otherwise, again when the weights have doubled or halved.

    Args:
        task: whose model and loss are asked; none of its rows is read.
        shape: of the passes.
        form: of linear layers.

    Raises:
        UseError: the model or the loss seeds a generator.
    """
    trained = tuple((name, p.dtype) for name, p in task.parameters.items())
    key = (shape, str(form), task.masked, task.item_clip_norm is None, task.model.training, trained)
    known = _known.of(task.model, task.loss)
    found = known.get(key)
    size = found.size if isinstance(found, Certificate) else None
    if found is None or (size is not None and size != task.size):
        with known_randomness("made-up rows"):
            known[key] = _asked(task, shape, form)
    return known[key]


def _asked(task: Task, shape: PassShape, form: Forms) -> Certificate | str:
    units, first = _made_up(task, shape), tuple(range(shape.units))
    here, there = (
        Pass(order, first, shape).of(units) for order in (first, (shape.units, *first[:-1]))
    )
    cold, host, seeded = State(task.model, task.loss), _host_generators(), seeds()
    kept = cold
    try:
        # A cache that is filled once for a shape (a mask, a rotary table) is then no change.
        with eagerly():
            row_losses(task.loss, task.model, *here.all_rows())
        state = State(task.model, task.loss)
        ask = _Question(task, form, Workspace(state.tensors()))
        squares, calls = ask.proved(here)
        if _host_generators() != host:
            return "it draws from Python's or NumPy's generator, whose numbers all rows share"
        if state.changed():
            return "a pass writes to what the model or the loss holds"
        if calls.drew:  # masks differ by place
            with evaluating(task.model):
                squares, moved = (ask.proved(each)[0] for each in (here, there))
        else:
            moved = ask.repeated(there, calls)
        kept = state
    except NotCoveredError as error:
        return f"{', '.join(error.names[:3])} {'has' if len(error.names) == 1 else 'have'} no rule"
    except CANNOT_RUN as error:
        if isinstance(error, UseError) or ran_out_of_memory(error):
            raise
        return f"made-up rows of this shape raise {type(error).__name__}"
    finally:
        if seeds() != seeded:
            raise UseError(
                "the model or the loss seeds a random number generator: masks are then known",
                hint="do not seed inside the model or the loss",
            )
        kept.put_back()
    rows = 1 if task.item_clip_norm is None else shape.rows
    one, other = squares[:, :-rows], moved[:, rows:]
    same = (one == other) | (one.isnan() & other.isnan())
    found = Certificate(calls=calls, places=first, held=ask.held)
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


class _Question:
    def __init__(self, task: Task, form: Forms, workspace: Workspace) -> None:
        self._task, self._form, self._workspace = task, form, workspace

    @property
    def held(self) -> tuple[tuple[Tensor, int], ...]:
        """What was given out of sight, and its versions."""
        return tuple((tensor, writes(tensor)) for tensor in self._workspace.strangers)

    def proved(self, units: Units) -> tuple[Tensor, Calls]:
        """Squared norms by parameter and unit, of a pass that is followed; and what it did.

        Where it was given tensors that nothing in sight holds, once more, with these as constants:
        the same ones must come again.
        """
        tape = Tape(self._task.parameters, self._layout(units), self._workspace, form=self._form)
        try:
            squares = self._squares(tape, units)
        except NotCoveredError:
            if not tape.strangers or self._workspace.strangers:
                raise
            self._workspace.strangers = list({id(one): one for one in tape.strangers}.values())
            return self.proved(units)
        tape.calls.drew = tape.drew
        return squares, tape.calls

    def repeated(self, units: Units, calls: Calls) -> Tensor:
        """The same of a pass that must make these calls."""
        layout = self._layout(units)
        tape = KnownTape(self._task.parameters, layout, self._workspace, calls, form=self._form)
        return self._squares(tape, units)

    def _layout(self, units: Units) -> Layout:
        return layout_of(units, by_row=self._task.item_clip_norm is not None)

    def _squares(self, tape: Tape, units: Units) -> Tensor:
        task = self._task
        tape.run(task.model, task.loss, units, owners=layout_of(units))
        with torch.no_grad():
            return torch.stack(list(tape.squares_by_name().values()))


def _made_up(task: Task, shape: PassShape) -> Units:
    """One unit more than the pass has places, of rows as long as fit, and of shorter ones."""
    rows = (shape.units + 1) * shape.rows
    lengths = (min(length, shape.width) for length in large(rows, shape.width).lengths[:rows])
    wanted = Shape((shape.rows,) * (shape.units + 1), tuple(lengths))
    return made_up(task.model, wanted, masked=task.masked, device=task.units.lengths.device)


def _host_generators() -> tuple[object, ...]:
    legacy = np.random.get_state(legacy=True)
    return random.getstate(), *(
        part.tobytes() if hasattr(part, "tobytes") else part for part in legacy
    )
